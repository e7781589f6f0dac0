"""The runs in virtual time as a table, and what is asked of them.

Several gateways are held against one with the same seed, and what is told is the mean of these
ratios over the seeds with its 95 % confidence interval. A goal is met when the whole interval
reaches it, missed when none of it does, and between the two chance is as large as the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import isnan
from statistics import fmean

from loadtests.replay.interval import Interval, interval
from loadtests.replicas.sharing import NOTHING, SHARED_ARMS
from loadtests.replicas.virtual import Row

TOLERANCE = 0.01
"""How much worse than one several gateways that share may be."""

_HEAD = (
    "| gateways | | follow-up hits | of one's | | in flight max/mean | of one's | |"
    " prefill max/mean | TTFT P50 | P99 | records per request | bytes |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


class Verdict(StrEnum):
    MET = "met"
    NOISE = "within noise"
    MISSED = "missed"


def table(rows: Sequence[Row]) -> str:
    """Markdown, one table for each workload."""
    parts = []
    for workload in dict.fromkeys(row.workload for row in rows):
        own = [row for row in rows if row.workload == workload]
        seeds = len(own[0].figures["follow_ups"])
        lines = "\n".join(_line(row, own[0]) for row in own)
        parts.append(f"**{workload}**, seeds 1 to {seeds}\n\n{_HEAD}\n{lines}")
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
        hits, balance = _hits(row, one), _balance(row, one)
        if row.sharing is NOTHING and hits.mean > 1 - TOLERANCE:
            found.append(f"{where}: as many follow-up hits as one gateway has")
        if row.sharing not in SHARED_ARMS:
            continue
        if _enough(hits) is Verdict.MISSED:
            found.append(f"{where}: {hits.mean:.3f} of the follow-up hits of one gateway")
        if _even(balance) is Verdict.MISSED:
            found.append(
                f"{where}: in flight max/mean is {balance.mean:.3f} times that of one gateway"
            )
    return found


def _line(row: Row, one: Row) -> str:
    requests = _mean(row, "all_requests")
    hits, balance = _hits(row, one), _balance(row, one)
    judged = row is not one and row.sharing in SHARED_ARMS
    cells = [
        f"{row.replicas}",
        "" if row is one else row.sharing.name,
        f"{_mean(row, 'follow_ups'):.3f}",
        "" if row is one else _ratio(hits),
        _enough(hits) if judged else "",
        f"{_mean(row, 'in_flight'):.3f}",
        "" if row is one else _ratio(balance),
        _even(balance) if judged else "",
        f"{_mean(row, 'imbalance'):.3f}",
        f"{_mean(row, 'ttft_p50'):.2f} s",
        f"{_mean(row, 'ttft_p99'):.1f} s",
        f"{_mean(row, 'records') / requests:.1f}",
        f"{_mean(row, 'bytes') / requests:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(ratio: Interval) -> str:
    return f"{ratio.mean:.3f}" + ("" if isnan(ratio.half) else f" ± {ratio.half:.3f}")


def _hits(row: Row, one: Row) -> Interval:
    return _held_against(row, one, "follow_ups")


def _balance(row: Row, one: Row) -> Interval:
    return _held_against(row, one, "in_flight")


def _held_against(row: Row, one: Row, name: str) -> Interval:
    pairs = zip(row.figures[name], one.figures[name], strict=True)
    return interval([own / other for own, other in pairs])


def _enough(ratio: Interval) -> Verdict:
    return _verdict(ratio.mean - (1 - TOLERANCE), ratio.half)


def _even(ratio: Interval) -> Verdict:
    return _verdict(1 + TOLERANCE - ratio.mean, ratio.half)


def _verdict(better: float, half: float) -> Verdict:
    """
    Args:
        better: by how much the mean is, than it must be.
        half: of the interval around it; NaN when there is one value only, which is taken as it is.
    """
    if isnan(half):
        return Verdict.MET if better >= 0 else Verdict.MISSED
    if better >= half:
        return Verdict.MET
    return Verdict.NOISE if better >= -half else Verdict.MISSED


def _one(row: Row, rows: Iterable[Row]) -> Row:
    return next(each for each in rows if each.workload == row.workload and each.replicas == 1)


def _mean(row: Row, name: str) -> float:
    return fmean(row.figures[name])
