"""The runs in virtual time as a table, and what is asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadtests.replicas.sharing import NOTHING, SHARED
from loadtests.replicas.virtual import Row

TOLERANCE = 0.01
"""How much worse than one several gateways that share may be."""

_HEAD = (
    "| gateways | | follow-up hits | of one's | prefill max/mean | in flight max/mean |"
    " TTFT P50 | P99 | records per request | bytes |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def table(rows: Sequence[Row]) -> str:
    """Markdown, one table for each workload."""
    parts = []
    for workload in dict.fromkeys(row.workload for row in rows):
        own = [row for row in rows if row.workload == workload]
        parts.append(f"**{workload}**\n\n{_HEAD}\n" + "\n".join(_line(row, own[0]) for row in own))
    return "\n\n".join(parts)


def missed(rows: Iterable[Row]) -> list[str]:
    """What is not as it should be, a line each: gateways that share are as one, and those that
    share nothing are not, or the comparison would say nothing."""
    rows = list(rows)
    found = []
    for row in rows:
        one = _one(row, rows)
        if row is one:
            continue
        where = f"{row.workload}, {row.replicas} gateways, {row.sharing.name}"
        hits = _mean(row, "follow_ups") / _mean(one, "follow_ups")
        if row.sharing is NOTHING and hits > 1 - TOLERANCE:
            found.append(f"{where}: as many follow-up hits as one gateway has")
        if row.sharing is not SHARED:
            continue
        if hits < 1 - TOLERANCE:
            found.append(f"{where}: {hits:.3f} of the follow-up hits of one gateway")
        worse = _mean(row, "in_flight") / _mean(one, "in_flight")
        if worse > 1 + TOLERANCE:
            found.append(f"{where}: in flight max/mean is {worse:.3f} times that of one gateway")
    return found


def _line(row: Row, one: Row) -> str:
    requests = _mean(row, "all_requests")
    hits = _mean(row, "follow_ups")
    cells = [
        f"{row.replicas}",
        "" if row is one else row.sharing.name,
        f"{hits:.3f}",
        f"{hits / _mean(one, 'follow_ups'):.3f}",
        f"{_mean(row, 'imbalance'):.3f}",
        f"{_mean(row, 'in_flight'):.3f}",
        f"{_mean(row, 'ttft_p50'):.2f} s",
        f"{_mean(row, 'ttft_p99'):.1f} s",
        f"{_mean(row, 'records') / requests:.1f}",
        f"{_mean(row, 'bytes') / requests:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _one(row: Row, rows: Iterable[Row]) -> Row:
    return next(each for each in rows if each.workload == row.workload and each.replicas == 1)


def _mean(row: Row, name: str) -> float:
    return row.figures[name].mean
