"""An ablation as a table that says what helps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from loadtests.replay.interval import Interval, interval
from loadtests.suite.case import Figures
from loadtests.suite.cells import Column, number, table
from loadtests.suite.comparison import Comparison

COLUMNS = (
    Column("in SLO %", "slo", 100, 1),
    Column("hit %", "hit", 100, 1),
    Column("TTFT P95 s", "ttft_p95"),
    Column("slowdown P99", "slowdown_p99", 1, 1),
    Column("TPOT P95 ms", "tpot_p95", 1000, 0),
    Column("refused", "refused", 1, 0),
)
HARDLY = 0.002
"""Share of the requests within the SLO below which a difference is none, however sure."""


def report(name: str, comparison: Comparison) -> str:
    """A section in Markdown. The last columns hold each variant against the first of its group,
    seed by seed."""
    ablation = comparison.ablation
    lines = [f"### {name}", "", ablation.question, ""]
    for workload in comparison.workloads:
        for load in ablation.loads:
            rows = []
            for group in ablation.groups:
                first = comparison.runs(workload, load, group[0])
                for place, variant in enumerate(group):
                    runs = comparison.runs(workload, load, variant)
                    if not runs:
                        continue
                    cells = [column.cell(list(runs.values())) for column in COLUMNS]
                    verdict = _verdict(runs, first) if place else ["", ""]
                    rows.append([variant.label, *cells, *verdict])
            if rows:
                headings = ["", *(column.heading for column in COLUMNS), "in SLO, points", ""]
                lines += [f"{workload.name}, load {load:g}:", "", *table(headings, rows), ""]
    return "\n".join(lines).rstrip()


def _verdict(runs: Mapping[int, Figures], first: Mapping[int, Figures]) -> list[str]:
    both = sorted(runs.keys() & first.keys())
    apart = interval([runs[seed]["slo"] - first[seed]["slo"] for seed in both])
    return [number(apart, 1, 100, "+"), _word(apart)]


def _word(apart: Interval) -> str:
    """Whether chance alone could explain a difference."""
    if math.isnan(apart.half):
        return ""
    if abs(apart.mean) <= max(apart.half, HARDLY):
        return "no difference"
    return "better" if apart.mean > 0 else "worse"
