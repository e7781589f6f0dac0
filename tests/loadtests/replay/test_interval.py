from __future__ import annotations

import math
import random

import pytest

from loadtests.replay.interval import interval


def test_the_interval_of_five_values_is_students() -> None:
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3
    assert found.half == pytest.approx(2.776 * math.sqrt(2.5 / 5))


def test_a_single_value_has_none_and_nothing_no_mean() -> None:
    assert interval([7.0]).mean == 7
    assert math.isnan(interval([7.0]).half)
    assert math.isnan(interval([]).mean)
    assert interval([math.nan, 1.0, 3.0]).mean == 2
    assert interval([math.inf, 1.0]).mean == math.inf
    assert math.isnan(interval([math.inf, 1.0]).half)


@pytest.mark.parametrize("size", [2, 5, 31, 40])
def test_nineteen_of_twenty_intervals_hold_the_true_mean(size: int) -> None:
    dice = random.Random(size)
    held = 0
    for _ in range(2000):
        found = interval([dice.gauss(10, 3) for _ in range(size)])
        held += abs(found.mean - 10) <= found.half
    assert held / 2000 == pytest.approx(0.95, abs=0.015)
