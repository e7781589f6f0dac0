from __future__ import annotations

import random
from statistics import fmean, median

import pytest

from loadtests.replay.generators.draw import Zipf, around, poisson, tries


def test_lengths_lie_around_their_median_and_within_bounds() -> None:
    dice = random.Random(1)
    drawn = [around(dice, 1000, 1.0, 5000) for _ in range(5000)]
    assert median(drawn) == pytest.approx(1000, rel=0.1)
    assert sum(1000 / 2.72 < n < 2720 for n in drawn) / 5000 == pytest.approx(0.68, abs=0.03)
    assert max(drawn) == 5000
    assert around(dice, 0.001, 1.0, 5) == 1


def test_tries_have_their_mean() -> None:
    dice = random.Random(1)
    drawn = [tries(dice, 5.0) for _ in range(5000)]
    assert fmean(drawn) == pytest.approx(5, rel=0.05)
    assert min(drawn) == 1
    assert tries(dice, 1.0) == 1


def test_a_poisson_process_has_its_rate() -> None:
    times = list(poisson(random.Random(1), 4.0, -100, 900))
    assert len(times) == pytest.approx(4000, rel=0.05)
    assert times == sorted(times)
    assert times[0] > -100
    assert times[-1] < 900


def test_zipf_weighs_by_rank() -> None:
    dice, which = random.Random(1), Zipf(4, 1.0)
    drawn = [which.draw(dice) for _ in range(5000)]
    shares = [drawn.count(k) / 5000 for k in range(4)]
    assert shares == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25], abs=0.03)
