"""One thing changed at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from loadtests.replay.cli import KV_TOKENS
from loadtests.replay.fleet import Fleet
from loadtests.replay.incidents import Incident, Kind
from loadtests.replay.player import Mode
from loadtests.replay.trace import Trace
from loadtests.suite.plan import ENGINES, EQUAL, OURS, fleet_of

MakeFleet = Callable[[Trace, float], Fleet]
"""For a trace that is played under a load."""


def equal(trace: Trace, load: float) -> Fleet:
    return fleet_of(EQUAL, trace)


@dataclass(slots=True, frozen=True)
class Variant:
    """
    Attributes:
        label: says what is different.
        policy: as the replay's command line has it.
        per_load: load in times that of the ablation.
    """

    label: str
    policy: str = OURS
    fleet: MakeFleet = equal
    per_load: float = 1.0
    mode: Mode = Mode.OPEN


@dataclass(slots=True, frozen=True)
class Ablation:
    """
    Attributes:
        question: that it answers.
        groups: variants that are held against the first of their group.
        loads: in times the nominal one.
    """

    question: str
    groups: Sequence[Sequence[Variant]]
    loads: Sequence[float] = (1.0, 1.15)

    @property
    def variants(self) -> list[Variant]:
        return [variant for group in self.groups for variant in group]


def changed(**values: object) -> list[Variant]:
    """One variant for each name and value of a list; `__` stands for a dot."""
    found = []
    for name, choices in values.items():
        key = name.replace("__", ".")
        for value in choices if isinstance(choices, (list, tuple)) else [choices]:
            text = "null" if value is None else str(value).lower()
            short = key.removeprefix("scheduling.").removeprefix("knows.")
            found.append(Variant(f"{short} {text}", f"{OURS}?{key}={text}"))
    return found


def engines(count: int) -> Callable[[Variant], Variant]:
    """The variant with so many engines, and as much load for each."""

    def make(trace: Trace, load: float) -> Fleet:
        return fleet_of(EQUAL, trace, engines=count)

    return lambda variant: replace(
        variant,
        label=f"{count} engines, {variant.label}",
        fleet=make,
        per_load=count / ENGINES,
    )


def cache(blocks: int) -> Callable[[Variant], Variant]:
    """The variant with so many blocks of 512 tokens in each engine's cache."""

    def make(trace: Trace, load: float) -> Fleet:
        return fleet_of(EQUAL, trace, kv_tokens=blocks * 512)

    return lambda variant: replace(variant, label=f"{blocks} blocks, {variant.label}", fleet=make)


def named(fleet: str) -> Callable[[Variant], Variant]:
    """The variant on one of the suite's fleets."""

    def make(trace: Trace, load: float) -> Fleet:
        return fleet_of(fleet, trace)

    return lambda variant: replace(variant, label=f"{fleet}, {variant.label}", fleet=make)


def befalls(label: str, *incidents: tuple[Kind, float]) -> Callable[[Variant], Variant]:
    """The variant with incidents of the last engine, each at a share of the run."""

    def make(trace: Trace, load: float) -> Fleet:
        span = trace.span / load
        happen = tuple(Incident(kind, ENGINES - 1, share * span) for kind, share in incidents)
        return replace(fleet_of(EQUAL, trace), incidents=happen)

    return lambda variant: replace(variant, label=f"{label}, {variant.label}", fleet=make)


KV_BLOCKS = KV_TOKENS // 512
