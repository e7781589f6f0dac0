"""The variants of an ablation, held against the first of their group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from loadtests.replay.player import Mode
from loadtests.replay.sessions import link
from loadtests.replay.trace import Trace
from loadtests.suite.case import Case, Figures, Place
from loadtests.suite.plan import EQUAL, arm, fleet_of
from loadtests.suite.store import Store
from loadtests.suite.variants import Ablation, Variant
from loadtests.suite.version import Version
from loadtests.suite.workload import Workload


@dataclass(slots=True, frozen=True)
class Comparison:
    ablation: Ablation
    workloads: Sequence[Workload]
    store: Store
    version: Version
    _linked: dict[int, Trace] = field(default_factory=dict)

    def cases(self) -> list[Case]:
        """Each once: groups may have variants in common."""
        found = {
            case.key: case
            for workload in self.workloads
            for load in self.ablation.loads
            for variant in self.ablation.variants
            for case in self._cases(workload, load, variant)
        }
        return list(found.values())

    def runs(self, workload: Workload, load: float, variant: Variant) -> dict[int, Figures]:
        """By seed, as far as they are done."""
        found = {}
        for seed, case in enumerate(self._cases(workload, load, variant), 1):
            done = self.store.get(case)
            if done is not None:
                found[seed] = done.figures
        return found

    def _cases(self, workload: Workload, load: float, variant: Variant) -> Iterator[Case]:
        policy, at = arm(variant.policy), load * variant.per_load
        for seed, made in enumerate(workload.traces, 1):
            trace = self._with_sessions(made) if variant.mode is Mode.CLOSED else made
            fleet = variant.fleet(trace, at)
            place = Place(
                workload.name, trace, seed, variant.label, fleet, self.version, variant.mode
            )
            yield place.run(policy, at)

    def _with_sessions(self, trace: Trace) -> Trace:
        """The trace with parents, which takes a while to find."""
        known = self._linked.get(id(trace))
        if known is None:
            known = link(trace, fleet_of(EQUAL, trace).profile)
            self._linked[id(trace)] = known
        return known
