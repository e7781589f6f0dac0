"""What `make replay` runs: every policy on every workload, under every load, on every fleet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.config import Scheduling
from loadtests.replay import arm as arms
from loadtests.replay.arm import Arm
from loadtests.replay.capacity import TARGET
from loadtests.replay.cli import KV_TOKENS, RUNNING_TOKENS
from loadtests.replay.fleet import Fleet, SlowDown
from loadtests.replay.trace import Trace
from loadtests.rivals.registry import RIVALS
from loadtests.sim import profile as profiles
from loadtests.suite.case import Case, Place
from loadtests.suite.store import Store
from loadtests.suite.version import Version
from loadtests.suite.workload import Workload

OURS = "prefix_affinity"
POLICIES = (OURS, *RIVALS, "round_robin+plain")
LEARNING = tuple(
    f"{name}?knows.rates=true" for name in ("dualmap", "minimum_ttft", "preble") if name in RIVALS
)
"""Rivals whose rules go by prefill times, with the gateway's learnt ones in place of their
authors' constants: for engines that are not alike."""

ENGINES = 8
LOADS = (0.7, 0.9, 1.0, 1.15, 1.3)
NOMINAL = 1.0

EQUAL = "equal"
HALF_SLOW = "half of the engines half as fast"
SLOWED = "one engine three times slower from mid-run on"
UNEQUAL_LOADS = {HALF_SLOW: 0.7, SLOWED: 0.9}
"""About what is left of the engines, in times of the nominal load."""


@dataclass(slots=True, frozen=True)
class Plan:
    """
    Attributes:
        arms: of the equal fleet.
        loads: of the equal fleet.
    """

    workloads: Sequence[Workload]
    arms: Sequence[Arm]
    loads: Sequence[float]
    version: Version

    def seeds(self, workload: Workload) -> range:
        return range(1, len(workload.traces) + 1)

    def place(self, workload: Workload, seed: int, fleet: str = EQUAL) -> Place:
        trace = workload.traces[seed - 1]
        return Place(workload.name, trace, seed, fleet, fleet_of(fleet, trace), self.version)

    def unequal_arms(self) -> list[Arm]:
        names = {arm.name for arm in self.arms}
        return [
            *self.arms,
            *(arm(name) for name in LEARNING if name.partition("?")[0] in names),
        ]

    def runs(self) -> list[Case]:
        """Seed by seed, so that tables are whole early."""
        found = []
        for seed, workload in self._seeds():
            place = self.place(workload, seed)
            for load in self.loads:
                found += [place.ceiling(load), *(place.run(arm, load) for arm in self.arms)]
        for seed, workload in self._seeds():
            for fleet, load in UNEQUAL_LOADS.items():
                place = self.place(workload, seed, fleet)
                found += [place.ceiling(load), *(place.run(a, load) for a in self.unequal_arms())]
        return found

    def searches(self, store: Store) -> list[Case]:
        """For the capacities, around the loads of which `store` knows how they went."""
        return [
            self.search(workload, seed, arm, store)
            for seed, workload in self._seeds()
            for arm in self.arms
        ]

    def search(self, workload: Workload, seed: int, arm: Arm, store: Store) -> Case:
        place = self.place(workload, seed)
        done = {load: store.get(place.run(arm, load)) for load in self.loads}
        known = {
            load: run.figures["slo"] >= TARGET for load, run in done.items() if run is not None
        }
        return place.capacity(arm, known)

    def _seeds(self) -> Iterator[tuple[int, Workload]]:
        most = max((len(workload.traces) for workload in self.workloads), default=0)
        for seed in range(1, most + 1):
            for workload in self.workloads:
                if seed <= len(workload.traces):
                    yield seed, workload


def arm(name: str) -> Arm:
    """
    Raises:
        ConfigError: it is unknown, or a parameter is wrong.
    """
    return arms.find(name, Scheduling())


def fleet_of(name: str, trace: Trace, engines: int = ENGINES, kv_tokens: int = KV_TOKENS) -> Fleet:
    """A fleet of the suite's engines by its name."""
    profile = profiles.load(profiles.DEFAULT).replace(
        kv_tokens=kv_tokens, max_running_tokens=min(RUNNING_TOKENS, kv_tokens)
    )
    speeds = [1.0] * engines
    slow_downs: tuple[SlowDown, ...] = ()
    if name == HALF_SLOW:
        speeds[engines // 2 :] = [0.5] * (engines - engines // 2)
    if name == SLOWED:
        slow_downs = (SlowDown(0, trace.span / UNEQUAL_LOADS[SLOWED] / 2, 3.0),)
    return Fleet(profile, tuple(speeds), slow_downs)
