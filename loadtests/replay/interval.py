"""Means with their 95 % confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# Two-sided 95 % quantiles of Student's t for 1, 2, 3... degrees of freedom.
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL95 = 1.960


@dataclass(slots=True, frozen=True)
class Interval:
    """
    Attributes:
        half: half the width of the interval around the mean; NaN for a single value or an endless
            one.
    """

    mean: float
    half: float


def interval(values: Sequence[float]) -> Interval:
    """Of the mean of what the values are a sample of; without those that are NaN."""
    known = [value for value in values if not math.isnan(value)]
    count = len(known)
    mean = fmean(known) if known else math.nan
    if count < 2 or math.isinf(mean):
        return Interval(mean, math.nan)
    t = _T95[count - 2] if count - 2 < len(_T95) else _NORMAL95
    return Interval(mean, t * stdev(known) / math.sqrt(count))
