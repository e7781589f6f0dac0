"""The suite's results as the tables of the benchmark page."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from loadtests.replay.arm import Arm
from loadtests.suite.cells import NOTHING, Column, table
from loadtests.suite.parameters import parameters
from loadtests.suite.plan import NOMINAL, UNEQUAL_LOADS, Plan
from loadtests.suite.results import Results
from loadtests.suite.store import Store
from loadtests.suite.summary import summary
from loadtests.suite.workload import Workload

COLUMNS = (
    Column("in SLO %", "slo", 100, 1),
    Column("hit %", "hit", 100, 1),
    Column("of oracle", "hit_share"),
    Column("TTFT P50 s", "ttft_p50"),
    Column("P95", "ttft_p95"),
    Column("P99", "ttft_p99", 1, 1),
    Column("TPOT P50 ms", "tpot_p50", 1000, 0),
    Column("P95", "tpot_p95", 1000, 0),
    Column("P99", "tpot_p99", 1000, 0),
    Column("slowdown P99", "slowdown_p99", 1, 1),
    Column("imbalance", "imbalance"),
)


def report(plan: Plan, store: Store) -> str:
    """All tables, in Markdown."""
    results = Results(plan, store)
    lines = ["#### Ours and the best rival", "", *summary(results), ""]
    for workload in plan.workloads:
        lines += [f"#### {workload.name}", "", _about(workload), ""]
        for load in plan.loads:
            lines += _loads(results, workload, load)
    for fleet, load in UNEQUAL_LOADS.items():
        lines += [f"#### Unequal engines: {fleet}, load {load:g}", ""]
        for workload in plan.workloads:
            rows = _rows(results, workload, plan.unequal_arms(), load, fleet)
            lines += _folded(workload.name, [*table(_headings(), rows), ""])
    lines += ["#### Parameters", "", *parameters(plan)]
    return "\n".join(lines)


def _about(workload: Workload) -> str:
    first = workload.traces[0]
    rate = fmean(trace.rate for trace in workload.traces)
    digests = sorted({trace.digest[:16] for trace in workload.traces})
    return (
        f"`{first.name}`, {len(first.requests)} requests in {first.span:.0f} s; load 1 is"
        f" {rate:.2f} requests/s; SHA-256 {', '.join(digests)}"
    )


def _loads(results: Results, workload: Workload, load: float) -> list[str]:
    ceilings = results.ceilings(workload, load)
    rows = _rows(results, workload, results.plan.arms, load)
    title = f"load {load:g}"
    if ceilings:
        shared = fmean(each["oracle_hit"] for each in ceilings)
        endless = fmean(each["infinite_hit"] for each in ceilings)
        title += f"; hits of one shared cache {shared:.1%}, of an endless one {endless:.1%}"
    lines = [*table(_headings(), rows), ""]
    return [f"{title}:", "", *lines] if load == NOMINAL else _folded(title, lines)


def _rows(
    results: Results, workload: Workload, arms: Sequence[Arm], load: float, *fleet: str
) -> list[list[str]]:
    rows = []
    for arm in arms:
        runs = list(results.runs(workload, arm, load, *fleet).values())
        rows.append([f"`{arm.name}`", *(column.cell(runs) for column in COLUMNS)])
    return [row for row in rows if set(row[1:]) != {NOTHING}]


def _headings() -> list[str]:
    return ["policy", *(column.heading for column in COLUMNS)]


def _folded(title: str, lines: Sequence[str]) -> list[str]:
    return ["<details>", f"<summary>{title}</summary>", "", *lines, "</details>", ""]
