"""What a plan's cases came to, over all seeds that are done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtests.replay.arm import Arm
from loadtests.suite.case import Case, Figures
from loadtests.suite.plan import EQUAL, Plan
from loadtests.suite.store import Store
from loadtests.suite.workload import Workload


@dataclass(slots=True, frozen=True)
class Results:
    plan: Plan
    store: Store

    def runs(
        self, workload: Workload, arm: Arm, load: float, fleet: str = EQUAL
    ) -> dict[int, Figures]:
        """By seed, with `hit_share`: the hit ratio as a part of the shared cache's."""
        place = self.plan.place
        runs = self._of(workload, lambda seed: place(workload, seed, fleet).run(arm, load))
        bounds = self._of(workload, lambda seed: place(workload, seed, fleet).ceiling(load))
        for seed, figures in runs.items():
            if seed in bounds and bounds[seed]["oracle_hit"]:
                figures["hit_share"] = figures["hit"] / bounds[seed]["oracle_hit"]
        return runs

    def ceilings(self, workload: Workload, load: float, fleet: str = EQUAL) -> Sequence[Figures]:
        place = self.plan.place
        found = self._of(workload, lambda seed: place(workload, seed, fleet).ceiling(load))
        return list(found.values())

    def capacities(self, workload: Workload, arm: Arm) -> dict[int, Figures]:
        """By seed."""
        place = self.plan.place
        return self._of(workload, lambda seed: place(workload, seed).capacity(arm, {}))

    def _of(self, workload: Workload, case: Callable[[int], Case]) -> dict[int, Figures]:
        found = {}
        for seed in self.plan.seeds(workload):
            done = self.store.get(case(seed))
            if done is not None:
                found[seed] = dict(done.figures)
        return found
