from __future__ import annotations

from random import Random
from statistics import fmean, pstdev

import pytest

from gateway.telemetry.sketch import Sketch

CLOSE = 0.06
"""Half of a bucket, and a little for ranks that fall between two."""


def sketch(values: list[float]) -> Sketch:
    made = Sketch()
    for value in values:
        made.add(value)
    return made


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4], ids=str)
def test_quantiles_are_close_whatever_the_unit(scale: float) -> None:
    random = Random(3)
    values = sorted(scale * random.lognormvariate(0.0, 1.5) for _ in range(5000))
    made = sketch(values)
    for share in (0.05, 0.5, 0.95, 0.99):
        assert made.quantile(share) == pytest.approx(values[int(share * 5000) - 1], rel=CLOSE)
    assert made.mean == pytest.approx(fmean(values))
    assert made.deviation == pytest.approx(pstdev(values))


def test_of_equal_numbers_all_quantiles_are_that_number() -> None:
    made = sketch([0.3] * 7)
    assert (made.quantile(0.01), made.quantile(1.0), made.deviation) == (0.3, 0.3, 0.0)


def test_nothing_has_no_quantiles() -> None:
    made = Sketch()
    assert (made.quantile(0.5), made.mean, made.deviation) == (None, None, None)


def test_two_together_are_as_one() -> None:
    random = Random(5)
    values = [random.expovariate(2.0) for _ in range(600)]
    both, whole = sketch(values[:250]), sketch(values)
    both.take_in(sketch(values[250:]))
    assert both.count == whole.count
    for share in (0.1, 0.5, 0.99):
        assert both.quantile(share) == whole.quantile(share)


def test_what_is_out_of_range_counts_at_its_end() -> None:
    made = sketch([0.0, 1e12])
    assert (made.quantile(0.5), made.count) == (pytest.approx(1e-5, rel=0.1), 2)
    assert made.quantile(1.0) == pytest.approx(1e8, rel=0.1)
