from __future__ import annotations

from loadtests.sim.histogram import Histogram


def test_a_histogram_counts_up_to_and_with_each_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    for value, times in ((0.5, 1), (1.0, 2), (1.5, 1), (9.0, 3)):
        histogram.observe(value, times)
    assert histogram.cumulative() == [("1.0", 3), ("2.0", 4), ("+Inf", 7)]
    assert histogram.total == 0.5 + 2 + 1.5 + 27
