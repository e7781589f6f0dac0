"""What both ways of playing a slice are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from loadtests.summary import percentile

CLOSE = 0.1
"""Two policies whose figures differ by no more than this share in virtual time are as good as
equal: which of them is ahead in a run of a minute is chance."""
CLOSE_HIT = 0.02
"""The same for hit ratios, as a difference."""


@dataclass(slots=True, frozen=True)
class Figures:
    """Of one policy.

    Attributes:
        failed: requests that got no answer.
        hit: prompt tokens that the engines counted as found in their caches, of all.
        ttft_mean, ttft_p95: seconds.
        tpot_mean: seconds.
    """

    requests: int
    failed: int
    hit: float
    ttft_mean: float
    ttft_p95: float
    tpot_mean: float


def figures(
    requests: int, hit: float, ttfts: Iterable[float | None], tpots: Iterable[float | None]
) -> Figures:
    """
    Args:
        ttfts: of each request; None when it got no answer.
    """
    seen = sorted(ttft for ttft in ttfts if ttft is not None)
    paces = [tpot for tpot in tpots if tpot is not None]
    return Figures(
        requests,
        requests - len(seen),
        hit,
        fmean(seen),
        percentile(seen, 0.95),
        fmean(paces),
    )


def mean(runs: Sequence[Figures]) -> Figures:
    """Of several runs of the same requests."""
    return Figures(
        runs[0].requests,
        round(fmean(run.failed for run in runs)),
        fmean(run.hit for run in runs),
        fmean(run.ttft_mean for run in runs),
        fmean(run.ttft_p95 for run in runs),
        fmean(run.tpot_mean for run in runs),
    )


def swapped(virtual: Mapping[str, Figures], live: Mapping[str, Figures]) -> list[str]:
    """Pairs of policies that live figures rank the other way round than those of virtual time.

    Pairs that virtual time does not tell apart are no pairs.
    """
    found = []
    names = list(virtual)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            for figure in ("ttft_mean", "ttft_p95", "hit"):
                a, b = (getattr(virtual[name], figure) for name in (one, other))
                near = CLOSE_HIT if figure == "hit" else CLOSE * max(a, b)
                c, d = (getattr(live[name], figure) for name in (one, other))
                if abs(a - b) > near and (a < b) != (c < d):
                    found.append(f"{one} and {other} by {figure}")
    return found


def hit_gap(virtual: Mapping[str, Figures], live: Mapping[str, Figures]) -> float:
    """The largest difference in hit ratio of any policy."""
    return max(abs(virtual[name].hit - live[name].hit) for name in virtual)
