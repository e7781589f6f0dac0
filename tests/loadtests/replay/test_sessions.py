from __future__ import annotations

import pytest

from loadtests.replay.sessions import MIN_COMMON, link, service_seconds
from tests.loadtests.replay.made import BLOCK, PREFILL, PROFILE, STEP, request, trace


def test_the_service_time_is_that_of_the_engine() -> None:
    # 4 chunks of 2,048 tokens at most, then 10 further tokens of a step each.
    alone = request(0, tokens=4 * BLOCK * 3 + 1, output_tokens=11)
    assert service_seconds(PROFILE, alone, 0) == pytest.approx(
        4 * STEP + alone.input_tokens * PREFILL + 10 * STEP
    )
    assert service_seconds(PROFILE, alone, BLOCK) == pytest.approx(
        3 * STEP + (alone.input_tokens - BLOCK) * PREFILL + 10 * STEP
    )


def test_the_parent_is_the_last_request_with_the_deepest_block() -> None:
    made = trace(
        request(0, [1, 2]),
        request(1, [1, 3]),
        request(20, [1, 2, 4]),
        request(40, [1, 2, 4, 5]),
        request(60, [9]),
        request(80, [1, 2, 6]),
    )
    linked = link(made, PROFILE).requests
    assert [found.parent for found in linked] == [None, 0, 0, 2, None, 3]


def test_think_time_is_the_gap_less_the_parents_service() -> None:
    first, second = request(0, [1, 2]), request(30, [1, 2, 3])
    third = request(30.5, [1, 2, 3, 4])
    linked = link(trace(first, second, third), PROFILE).requests
    assert linked[1].think == pytest.approx(30 - service_seconds(PROFILE, first, 0))
    assert linked[2].think == 0, "it came before an idle engine would have been done"
    fourth = request(60, [1, 2, 3, 4, 5])
    linked = link(trace(first, second, fourth), PROFILE).requests
    expected = 30 - service_seconds(PROFILE, second, 2 * BLOCK)
    assert linked[2].think == pytest.approx(expected)


def test_a_system_prompt_makes_no_session() -> None:
    common = [request(n, [1, 100 + n]) for n in range(MIN_COMMON)]
    turn = request(500, [1, 100, 7])
    linked = link(trace(*common, turn), PROFILE).requests
    assert all(found.parent is None for found in linked[:-1])
    assert linked[-1].parent == 0


def test_a_session_that_is_named_is_believed() -> None:
    made = trace(
        request(0, [1, 2], session="a"),
        request(10, [1, 2, 3], session="b"),
        request(20, [1, 2, 3, 4], session="a"),
        request(30, [9], session="b"),
    )
    assert [found.parent for found in link(made, PROFILE).requests] == [None, None, 0, 1]


def test_parents_that_are_known_stay() -> None:
    made = trace(request(0, [1]), request(1, [1]), request(2, [5], parent=0, think=1.0))
    assert link(made, PROFILE) is made
