from __future__ import annotations

import pytest

from loadtests.agreement.figures import Figures, figures, hit_gap, mean, swapped


def made(hit: float, ttft: float) -> Figures:
    return Figures(100, 0, hit, ttft, 3 * ttft, 0.02)


def test_figures_are_of_the_requests_that_were_answered() -> None:
    found = figures(3, 0.5, [1.0, None, 3.0], [0.1, None])
    assert (found.requests, found.failed) == (3, 1)
    assert found.ttft_mean == 2.0
    assert found.ttft_p95 == pytest.approx(2.9)
    assert found.tpot_mean == 0.1


def test_runs_are_averaged() -> None:
    found = mean([made(0.4, 1.0), made(0.6, 2.0)])
    assert (found.hit, found.ttft_mean, found.ttft_p95) == (0.5, 1.5, 4.5)


def test_the_same_ranking_at_other_speeds_is_the_same_ranking() -> None:
    virtual = {"a": made(0.8, 0.1), "b": made(0.5, 0.3), "c": made(0.3, 1.0)}
    live = {"a": made(0.79, 0.2), "b": made(0.52, 0.4), "c": made(0.31, 3.0)}
    assert swapped(virtual, live) == []
    assert hit_gap(virtual, live) == pytest.approx(0.02)


def test_a_pair_the_other_way_round_is_told_with_the_figure() -> None:
    virtual = {"a": made(0.8, 0.1), "b": made(0.5, 0.3)}
    live = {"a": made(0.8, 0.3), "b": made(0.5, 0.1)}
    assert swapped(virtual, live) == ["a and b by ttft_mean", "a and b by ttft_p95"]
    assert swapped(virtual, {"a": made(0.4, 0.1), "b": made(0.5, 0.3)}) == ["a and b by hit"]


def test_what_is_as_good_as_equal_has_no_ranking() -> None:
    virtual = {"a": made(0.80, 1.00), "b": made(0.79, 1.09)}
    live = {"a": made(0.79, 1.09), "b": made(0.80, 1.00)}
    assert swapped(virtual, live) == []
