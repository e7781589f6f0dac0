from __future__ import annotations

from math import inf

import pytest

from loadtests.replay.capacity import highest, holds
from loadtests.replay.metrics import Slo
from loadtests.replay.player import Scenario
from tests.loadtests.replay.made import ROTATE, fleet, request, trace


@pytest.mark.parametrize("limit", [0.05, 0.7, 0.999, 1.0, 1.01, 1.299, 7.7])
def test_the_highest_load_is_found_to_one_percent(limit: float) -> None:
    tried: list[float] = []

    def fits(load: float) -> bool:
        tried.append(load)
        return load <= limit

    found = highest(fits)
    assert limit / 1.01 <= found <= limit
    assert len(tried) == len(set(tried)), "no load is tried twice"


def test_the_search_ends_where_all_loads_hold_or_none_does() -> None:
    assert highest(lambda _: True) == inf
    assert highest(lambda _: False) == 0


def test_nine_of_ten_requests_are_enough() -> None:
    slo = Slo(ttft=2.0, ttft_factor=1.0)
    quick = [request(10.0 * n, tokens=1000) for n in range(1, 101)]
    for late, enough in ((10, True), (11, False)):
        # One that comes right behind a long one waits for it.
        slow = [request(10.0 * n + 0.001, tokens=6000) for n in range(12, 12 + late)]
        behind = [request(10.0 * n + 0.002, tokens=10) for n in range(12, 12 + late)]
        made = trace(*sorted([*quick, *slow, *behind], key=lambda one: one.arrival))
        scenario = Scenario(made, fleet())
        counted = [one for one in made.requests if one.arrival >= scenario.span / 10]
        assert holds(scenario, ROTATE, slo) is (2 * late <= len(counted) / 10) or enough


@pytest.mark.parametrize(
    "known",
    [{0.7: True, 1.3: False}, {0.7: True, 0.9: True}, {1.15: False}, {0.7: True, 0.8: False}],
)
def test_what_is_known_is_not_asked_again(known: dict[float, bool]) -> None:
    tried: list[float] = []

    def fits(load: float) -> bool:
        tried.append(load)
        return load <= 0.75 or (load in known and known[load])

    limit = 0.75 if 0.9 not in known else 0.9
    assert limit / 1.01 <= highest(fits, known) <= limit * 1.0001
    assert not known.keys() & set(tried)


def test_above_the_lowest_load_that_is_known_to_fail_nothing_counts() -> None:
    assert highest(lambda load: load <= 0.95, {0.9: True, 1.0: False, 1.15: True}) < 1.0
