"""A histogram that costs one bisection and two additions per observation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, pairwise

Bounds = tuple[float, ...]
"""Upper bounds of the buckets, inclusive, ascending; one more bucket takes what lies above."""


class Histogram:
    """Args:
    bounds: ascending.

    Attributes:
        counts: observations by bucket, not cumulative; one more than there are bounds.
        sum: of all values observed.

    Raises:
        ValueError: the bounds do not ascend, or there are none.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Bounds) -> None:
        if not bounds or any(low >= high for low, high in pairwise(bounds)):
            raise ValueError(f"bounds do not ascend: {bounds}")
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Buckets as Prometheus wants them: upper bound, and how many were at or below it."""
        names = (*map(str, self.bounds), "+Inf")
        return zip(names, accumulate(self.counts), strict=True)
