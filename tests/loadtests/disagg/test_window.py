from __future__ import annotations

import pytest

from gateway.config import ConfigError
from loadtests.disagg.window import cut
from loadtests.replay.trace import Trace, TraceRequest


@pytest.fixture
def trace() -> Trace:
    parents = (None, 0, None, 1, 2, 4)
    requests = [
        TraceRequest(10.0 * place, 100 + place, 1, parent=parent)
        for place, parent in enumerate(parents)
    ]
    return Trace("made", requests, "", 512)


def test_a_window_begins_at_0_and_ends_before_its_end(trace: Trace) -> None:
    requests = cut(trace, 10.0, 30.0).requests
    assert [request.input_tokens for request in requests] == [101, 102, 103]
    assert [request.arrival for request in requests] == [0.0, 10.0, 20.0]


def test_turns_keep_the_parents_that_are_inside_and_lose_the_others(trace: Trace) -> None:
    assert [each.parent for each in cut(trace, 20.0, None).requests] == [None, None, 0, 2]


def test_without_a_begin_and_an_end_it_is_the_whole_trace(trace: Trace) -> None:
    assert cut(trace, 0.0, None) == trace


@pytest.mark.parametrize("begin", [-1.0, 50.5, float("nan")])
def test_a_window_begins_within_the_trace(trace: Trace, begin: float) -> None:
    with pytest.raises(ConfigError, match=rf"--begin {begin:g}: expected from 0 to 50, .* made"):
        cut(trace, begin, 10.0)


def test_a_window_holds_a_request(trace: Trace) -> None:
    with pytest.raises(ConfigError, match=r"--begin 1: no request of made comes before 9 s"):
        cut(trace, 1.0, 8.0)
