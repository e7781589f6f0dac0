"""Quantiles of positive numbers in bounded memory, right to within a few percent."""

from __future__ import annotations

from math import ceil, inf, log, sqrt

GROWTH = 1.1
"""Of a bucket's upper bound over its lower one: a quantile is wrong by half of it at most."""
LEAST = 1e-5
MOST = 1e8
"""What lies beyond is counted there."""
_PER_LOG = 1.0 / log(GROWTH)


class Sketch:
    """Counts by buckets that grow with the value, kept only where there is something. An
    observation costs a logarithm and a few additions.

    Attributes:
        count: of the numbers.
        sum, squares: of them and of their squares.
    """

    __slots__ = ("_buckets", "_least", "_most", "count", "squares", "sum")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0.0
        self.squares = 0.0
        self._buckets: dict[int, int] = {}
        self._least = inf
        self._most = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.count += times
        self.sum += times * value
        self.squares += times * value * value
        if value < self._least:
            self._least = value
        if value > self._most:
            self._most = value
        if value < LEAST:
            value = LEAST
        elif value > MOST:
            value = MOST
        bucket = int(log(value / LEAST) * _PER_LOG)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times

    def take_in(self, other: Sketch) -> None:
        """Count all that another one has counted."""
        self.count += other.count
        self.sum += other.sum
        self.squares += other.squares
        for bucket, count in other._buckets.items():
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self._least = min(self._least, other._least)
        self._most = max(self._most, other._most)

    def quantile(self, share: float) -> float | None:
        """What `share` of the numbers are no larger than; None without any."""
        left = max(1, ceil(share * self.count))
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0:
                middle: float = LEAST * GROWTH ** (bucket + 0.5)
                return min(max(middle, self._least), self._most)
        return None

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation."""
        if not self.count:
            return None
        mean = self.sum / self.count
        return sqrt(max(0.0, self.squares / self.count - mean * mean))
