"""Numbers off a page that may say anything: each is of a size that can be true, or None."""

from __future__ import annotations

from math import isfinite

MAX_COUNT = 10**12
MAX_WORK = 1e18
ROUNDING = 0.01
"""By how much a share may lie above 1 and still be one."""


def count(value: float | None) -> int | None:
    """A number of requests or tokens."""
    if value is None or not 0 <= value <= MAX_COUNT:  # NaN compares false
        return None
    return int(value)


def positive(value: float | None) -> int | None:
    """A size, which is never 0."""
    return count(value) or None


def share(value: float | None) -> float | None:
    """A share of a whole."""
    if value is None or not 0.0 <= value <= 1.0 + ROUNDING:
        return None
    return min(1.0, float(value))


def total(values: list[float]) -> float | None:
    """A running total, None when nobody keeps one."""
    if not values:
        return None
    summed = sum(values)
    return summed if isfinite(summed) and 0.0 <= summed <= MAX_WORK else None


def whole(text: str | None) -> int | None:
    """A size written as a label, which says "None" where the engine has no value."""
    if text is None or len(text) > 15 or not (text.isascii() and text.isdigit()):
        return None
    return positive(int(text))
