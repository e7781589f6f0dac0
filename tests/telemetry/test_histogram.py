from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.telemetry.histogram import Histogram

BOUNDS = (0.1, 1.0, 10.0)


@pytest.mark.parametrize(
    ("value", "bucket"), [(0.0, 0), (0.1, 0), (0.11, 1), (1.0, 1), (10.0, 2), (10.1, 3)]
)
def test_bounds_are_inclusive(value: float, bucket: int) -> None:
    histogram = Histogram(BOUNDS)
    histogram.observe(value)
    assert histogram.counts.index(1) == bucket
    assert histogram.sum == value


@given(st.lists(st.floats(min_value=0, max_value=100)))
def test_cumulative_counts_what_is_at_or_below(values: list[float]) -> None:
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    expected = [(str(bound), sum(value <= bound for value in values)) for bound in BOUNDS]
    assert list(histogram.cumulative()) == [*expected, ("+Inf", len(values))]
    assert histogram.count == len(values)
    assert histogram.sum == pytest.approx(sum(values))


@pytest.mark.parametrize("bounds", [(), (1.0, 1.0), (2.0, 1.0)])
def test_bounds_must_ascend(bounds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="ascend"):
        Histogram(bounds)
