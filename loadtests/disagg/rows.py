"""What was found out about one way in one setting."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean

from loadtests.disagg.ways import Way, Wire


@dataclass(slots=True, frozen=True)
class Row:
    """
    Attributes:
        rate: requests per second at which 90 % are within the SLO, or `share`.
        remote: share of the requests on two engines, at that load.
        moved: bytes of KV cache per request.
        share: of the requests, within the SLO; None where the load was searched for.
        at_most: it may be less: another way takes as much, which is all that was asked.
    """

    trace: str
    wire: Wire | None
    pace: float
    way: Way
    rate: float
    remote: float
    moved: float
    share: float | None = None
    at_most: bool = False


def means(rows: Iterable[Row]) -> list[Row]:
    """One row for each way in each setting: the mean over windows, each counting the same."""
    windows: dict[object, list[Row]] = {}
    for row in rows:
        windows.setdefault((row.trace, row.wire, row.pace, row.way), []).append(row)
    return [_mean(of) for of in windows.values()]


def _mean(rows: list[Row]) -> Row:
    shares = [row.share for row in rows if row.share is not None]
    return replace(
        rows[0],
        rate=fmean(row.rate for row in rows),
        remote=fmean(row.remote for row in rows),
        moved=fmean(row.moved for row in rows),
        share=fmean(shares) if shares else None,
        at_most=any(row.at_most for row in rows),
    )
