"""Ours against the best rival, workload by workload, seed by seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from loadtests.replay.arm import Arm
from loadtests.replay.interval import interval
from loadtests.suite.case import Figures
from loadtests.suite.cells import NOTHING, number, table
from loadtests.suite.plan import NOMINAL, OURS, UNEQUAL_LOADS
from loadtests.suite.results import Results
from loadtests.suite.workload import Workload

BySeed = Mapping[int, float]


def summary(results: Results) -> list[str]:
    ours = [arm for arm in results.plan.arms if arm.name == OURS]
    if not ours:
        return [f"`{OURS}` was not among the policies."]
    rows = [
        line
        for workload in results.plan.workloads
        for line in _lines(results, workload, ours[0])
        if line[2] != NOTHING
    ]
    return [
        *table(["workload", "figure", "ours", "best rival", "", "difference"], rows),
        "",
        *_capacities(results),
    ]


def _lines(results: Results, workload: Workload, ours: Arm) -> list[list[str]]:
    plan = results.plan

    def nominal(metric: str) -> Callable[[Arm], BySeed]:
        return lambda arm: _metric(results.runs(workload, arm, NOMINAL), metric)

    lines = [
        _line(
            [workload.name, "capacity, requests/s"],
            ours,
            plan.arms,
            lambda arm: _metric(results.capacities(workload, arm), "rate"),
            relative=True,
        ),
        _line(["", "in SLO at load 1, %"], ours, plan.arms, nominal("slo"), factor=100, digits=1),
        _line(["", "hits, of the oracle's"], ours, plan.arms, nominal("hit_share")),
        _line(["", "slowdown P99"], ours, plan.arms, nominal("slowdown_p99"), least=True),
        _line(
            ["", "TPOT P95, ms"],
            ours,
            plan.arms,
            nominal("tpot_p95"),
            least=True,
            factor=1000,
            digits=0,
        ),
    ]
    for fleet, load in UNEQUAL_LOADS.items():

        def slo(arm: Arm, fleet: str = fleet, load: float = load) -> BySeed:
            return _metric(results.runs(workload, arm, load, fleet), "slo")

        lines.append(
            _line(["", f"in SLO, {fleet}, %"], ours, plan.unequal_arms(), slo, factor=100, digits=1)
        )
    return lines


def _line(
    head: list[str],
    ours: Arm,
    arms: Sequence[Arm],
    figure: Callable[[Arm], BySeed],
    *,
    least: bool = False,
    relative: bool = False,
    factor: float = 1.0,
    digits: int = 2,
) -> list[str]:
    """Args:
    least: the lowest is the best.
    relative: the difference in percent of the rival's.
    """
    own = figure(ours)
    rivals = {arm.name: values for arm in arms if arm is not ours and (values := figure(arm))}
    if not own or not rivals:
        return [*head, NOTHING, NOTHING, NOTHING, NOTHING]
    name = (min if least else max)(rivals, key=lambda rival: fmean(rivals[rival].values()))
    best = rivals[name]
    # Both have seen the same arrivals: by seed, the difference is surer than either figure.
    both = sorted(own.keys() & best.keys())
    if relative:
        apart = interval([own[seed] / best[seed] - 1 for seed in both if best[seed]])
        difference = f"{number(apart, 1, 100, '+')} %"
    else:
        apart = interval([own[seed] - best[seed] for seed in both])
        difference = number(apart, digits, factor, "+")
    return [
        *head,
        number(interval(list(own.values())), digits, factor),
        number(interval(list(best.values())), digits, factor),
        f"`{name}`",
        difference,
    ]


def _capacities(results: Results) -> list[str]:
    """Every policy's capacity on every workload."""
    workloads = results.plan.workloads
    rows = []
    for arm in results.plan.arms:
        found = [_metric(results.capacities(each, arm), "rate") for each in workloads]
        if any(found):
            rows.append([f"`{arm.name}`", *(number(interval([*f.values()]), 2) for f in found)])
    head = ["highest load with 90 % in SLO, requests/s"]
    return table([*head, *(workload.name for workload in workloads)], rows)


def _metric(runs: Mapping[int, Figures], name: str) -> BySeed:
    return {seed: figures[name] for seed, figures in runs.items() if name in figures}
