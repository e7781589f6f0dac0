"""One piece of the suite's work, and the name under which its result is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from time import process_time
from typing import Any

import msgspec

from loadtests.replay.arm import Arm
from loadtests.replay.comparison import Ceiling, Measurement, Search
from loadtests.replay.fleet import Fleet
from loadtests.replay.metrics import Slo
from loadtests.replay.player import Mode, Scenario
from loadtests.replay.trace import Trace
from loadtests.suite.version import Version

Figures = dict[str, float]


class Done(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a case, with what people want to know of where it is from.

    Attributes:
        seconds: of CPU that it took.
        figures: those that are finite numbers.
    """

    key: str
    kind: str
    workload: str
    trace: str
    fleet: str
    seed: int
    policy: str = ""
    load: float = 0.0
    mode: Mode = Mode.OPEN
    version: str
    code: str
    seconds: float
    figures: Figures


@dataclass(frozen=True)
class Case:
    """
    Attributes:
        kind: "run", "capacity" or "ceiling".
        fleet_name: for people.
        arm: None for a ceiling.
        load: 0 where it is what is looked for.
        work: gives the figures.
    """

    kind: str
    workload: str
    trace: Trace
    seed: int
    fleet_name: str
    fleet: Fleet
    arm: Arm | None
    load: float
    mode: Mode
    work: Callable[[], Figures]
    version: Version

    @cached_property
    def key(self) -> str:
        """Equal for cases of which the result must be the same."""
        arm = self.arm
        facts: list[Any] = [
            self.kind,
            (self.trace.digest, self.trace.name, self.seed),
            self.fleet,
            self.load,
            self.mode,
            None if arm is None else (arm.name, arm.params, arm.scheduling, arm.knowledge),
            Slo(),
            self.version.code,
        ]
        return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:24]

    def __call__(self) -> Done:
        begin = process_time()
        figures = {name: value for name, value in self.work().items() if isfinite(value)}
        return Done(
            key=self.key,
            kind=self.kind,
            workload=self.workload,
            trace=self.trace.digest,
            fleet=self.fleet_name,
            seed=self.seed,
            policy="" if self.arm is None else self.arm.name,
            load=self.load,
            mode=self.mode,
            version=self.version.number,
            code=self.version.code,
            seconds=round(process_time() - begin, 2),
            figures=figures,
        )


@dataclass(slots=True, frozen=True)
class Run:
    measurement: Measurement

    def __call__(self) -> Figures:
        return self.measurement().figures


@dataclass(slots=True, frozen=True)
class Bound:
    ceiling: Ceiling

    def __call__(self) -> Figures:
        ceilings = self.ceiling()
        return {"oracle_hit": ceilings.shared, "infinite_hit": ceilings.infinite}


@dataclass(slots=True, frozen=True)
class Capacity:
    search: Search

    def __call__(self) -> Figures:
        load = self.search()
        return {"load": load, "rate": load * self.search.trace.rate}


@dataclass(slots=True, frozen=True)
class Place:
    """Where cases are played: a workload with one seed on one fleet."""

    workload: str
    trace: Trace
    seed: int
    fleet_name: str
    fleet: Fleet
    version: Version
    mode: Mode = Mode.OPEN

    def run(self, arm: Arm, load: float) -> Case:
        scenario = Scenario(self.trace, self.fleet, self.mode, load)
        return self._case("run", arm, load, Run(Measurement(scenario, arm, Slo())))

    def ceiling(self, load: float) -> Case:
        work = Bound(Ceiling(self.trace, self.fleet.cache_tokens, load))
        return self._case("ceiling", None, load, work)

    def capacity(self, arm: Arm, known: Mapping[float, bool]) -> Case:
        """Args:
        known: loads of which it is known whether they hold; they do not change the result.
        """
        search = Search(self.trace, self.fleet, self.mode, arm, Slo(), known)
        return self._case("capacity", arm, 0.0, Capacity(search))

    def _case(self, kind: str, arm: Arm | None, load: float, work: Callable[[], Figures]) -> Case:
        return Case(
            kind,
            self.workload,
            self.trace,
            self.seed,
            self.fleet_name,
            self.fleet,
            arm,
            load,
            self.mode,
            work,
            self.version,
        )
