"""Every policy under every load, in both modes, with every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from loadtests.replay import capacity, jobs, oracle
from loadtests.replay.arm import Arm
from loadtests.replay.fleet import Fleet
from loadtests.replay.interval import Interval, interval
from loadtests.replay.metrics import Slo, curve, measured, metrics, warm_up
from loadtests.replay.player import Mode, Player, Scenario
from loadtests.replay.sessions import link
from loadtests.replay.source import Source
from loadtests.replay.trace import Trace

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Plan:
    """What is to be compared.

    Attributes:
        loads: how many times as fast as recorded.
        seeds: the same for all policies.
        capacity: whether to search for the load that each policy can take.
        processes: among which the runs are spread.
    """

    fleet: Fleet
    arms: Sequence[Arm]
    loads: Sequence[float]
    seeds: Sequence[int]
    modes: Sequence[Mode]
    slo: Slo
    capacity: bool = False
    processes: int = 1


@dataclass(slots=True, frozen=True)
class Measured:
    """One run."""

    figures: dict[str, float]
    curve: list[dict[str, float]]


@dataclass(slots=True, frozen=True)
class Row:
    """One policy under one load.

    Attributes:
        figures: by the metric's name, over all seeds.
        runs: of each seed.
    """

    mode: Mode
    load: float
    arm: str
    figures: Mapping[str, Interval]
    runs: Sequence[Measured]


@dataclass(slots=True, frozen=True)
class Capacity:
    """The highest load at which enough requests are within the SLO.

    Attributes:
        load: in times the recorded one; 0 when none is low enough.
        rate: the same in requests per second.
        loads: of each seed.
    """

    mode: Mode
    arm: str
    load: Interval
    rate: Interval
    loads: Sequence[float]


@dataclass(slots=True, frozen=True)
class Comparison:
    """
    Attributes:
        traces: one per seed, as they were played.
    """

    traces: Sequence[Trace]
    rows: Sequence[Row]
    capacities: Sequence[Capacity]


def compare(source: Source, plan: Plan) -> Comparison:
    """Run it all.

    Raises:
        ConfigError: an engine could never serve some request.
    """
    traces = [source(seed) for seed in plan.seeds]
    for trace in traces:
        plan.fleet.check(trace)
    if Mode.CLOSED in plan.modes:
        traces = [link(trace, plan.fleet.profile) for trace in traces]
    rows = _rows(traces, plan)
    return Comparison(traces, rows, _capacities(traces, plan) if plan.capacity else [])


def _rows(traces: Sequence[Trace], plan: Plan) -> list[Row]:
    cache = plan.fleet.cache_tokens
    ceilings = jobs.run(
        [Ceiling(trace, cache, load) for load in plan.loads for trace in traces],
        plan.processes,
        "ceilings",
    )
    ceilings_at = dict(zip(plan.loads, _parts(ceilings, len(traces)), strict=True))
    settings = list(product(plan.modes, plan.loads, plan.arms))
    runs = jobs.run(
        [
            Measurement(Scenario(trace, plan.fleet, mode, load), arm, plan.slo)
            for mode, load, arm in settings
            for trace in traces
        ],
        plan.processes,
        "runs",
    )
    rows = []
    for (mode, load, arm), own in zip(settings, _parts(runs, len(traces)), strict=True):
        for run, ceiling in zip(own, ceilings_at[load], strict=True):
            run.figures["oracle_hit"] = ceiling.shared
            run.figures["infinite_hit"] = ceiling.infinite
            if ceiling.shared:
                run.figures["hit_share"] = run.figures["hit"] / ceiling.shared
        names = list(own[0].figures)
        figures = {name: interval([run.figures[name] for run in own]) for name in names}
        rows.append(Row(mode, load, arm.name, figures, own))
    return rows


def _capacities(traces: Sequence[Trace], plan: Plan) -> list[Capacity]:
    settings = list(product(plan.modes, plan.arms))
    found = jobs.run(
        [
            Search(trace, plan.fleet, mode, arm, plan.slo)
            for mode, arm in settings
            for trace in traces
        ],
        plan.processes,
        "searches for the capacity",
    )
    capacities = []
    for (mode, arm), loads in zip(settings, _parts(found, len(traces)), strict=True):
        rates = [load * trace.rate for load, trace in zip(loads, traces, strict=True)]
        capacities.append(Capacity(mode, arm.name, interval(loads), interval(rates), loads))
    return capacities


def _parts(values: Sequence[T], size: int) -> list[Sequence[T]]:
    return [values[at : at + size] for at in range(0, len(values), size)]


@dataclass(slots=True, frozen=True)
class Ceilings:
    """Hit ratios that caching could reach: with one cache for all engines, and with one that has
    no end."""

    shared: float
    infinite: float


@dataclass(slots=True, frozen=True)
class Ceiling:
    """The ceilings of a trace under a load."""

    trace: Trace
    cache_tokens: int
    load: float

    def __call__(self) -> Ceilings:
        begin = warm_up(self.trace.span / self.load) * self.load
        return Ceilings(
            oracle.hit_ratio(self.trace, self.cache_tokens, begin),
            oracle.hit_ratio(self.trace, None, begin),
        )


@dataclass(slots=True, frozen=True)
class Measurement:
    """A run, and its figures."""

    scenario: Scenario
    arm: Arm
    slo: Slo

    def __call__(self) -> Measured:
        player = Player(self.scenario, self.arm)
        player.play()
        results = measured(player.results, self.scenario.span)
        engines = len(self.scenario.fleet.speeds)
        return Measured(metrics(results, engines, self.slo), curve(results))


@dataclass(slots=True, frozen=True)
class Search:
    """The highest load, in times the recorded one, that a policy can take.

    Attributes:
        known: loads of which it is known whether they hold.
    """

    trace: Trace
    fleet: Fleet
    mode: Mode
    arm: Arm
    slo: Slo
    known: Mapping[float, bool] = field(default_factory=dict)

    def __call__(self) -> float:
        return capacity.highest(self._holds, self.known)

    def _holds(self, load: float) -> bool:
        scenario = Scenario(self.trace, self.fleet, self.mode, load)
        return capacity.holds(scenario, self.arm, self.slo)
