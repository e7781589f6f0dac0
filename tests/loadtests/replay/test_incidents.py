from __future__ import annotations

import pytest

from loadtests.replay.exchange import BROKEN
from loadtests.replay.fleet import Fleet
from loadtests.replay.incidents import Incident, Kind
from loadtests.replay.player import Player, Scenario
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace
from tests.loadtests.replay.made import BLOCK, PREFILL, PROFILE, ROTATE, STEP, request, trace


def play(made: Trace, engines: int, *incidents: Incident) -> list[Result]:
    player = Player(Scenario(made, Fleet(PROFILE, (1.0,) * engines, incidents=incidents)), ROTATE)
    player.play()
    return player.results


def test_a_prefill_that_a_crash_ends_is_done_elsewhere() -> None:
    made = trace(request(0, tokens=2000), request(9, tokens=100))
    again, later = play(made, 2, Incident(Kind.CRASH, 0, 1.0))
    assert (again.engine, later.engine) == (1, 1)
    assert again.first == pytest.approx(1.0 + STEP + 2000 * PREFILL)
    assert again.refusal is None


def test_an_answer_that_a_crash_ends_is_lost() -> None:
    made = trace(request(0, tokens=100, output_tokens=1000), request(9, tokens=100))
    lost, later = play(made, 2, Incident(Kind.CRASH, 0, 1.0))
    assert (lost.first, lost.refusal) == (None, BROKEN)
    assert later.refusal is None


def test_with_no_other_engine_there_is_no_answer() -> None:
    [lost] = play(trace(request(0, tokens=2000)), 1, Incident(Kind.CRASH, 0, 1.0))
    assert lost.refusal == "no_backend"


def test_an_engine_that_drains_finishes_what_it_has() -> None:
    made = trace(*(request(0.5 * n, tokens=100, output_tokens=500) for n in range(4)))
    results = play(made, 2, Incident(Kind.DRAIN, 0, 0.6))
    assert [result.engine for result in results] == [0, 1, 1, 1]
    assert all(result.last is not None for result in results)


def test_an_engine_comes_with_an_empty_cache() -> None:
    made = trace(*(request(10.0 * n, [1]) for n in range(6)))
    crash, join = Incident(Kind.CRASH, 0, 25.0), Incident(Kind.JOIN, 0, 35.0)
    results = play(made, 1, crash, join)
    assert [result.cached_tokens for result in results] == [0, BLOCK, BLOCK, 0, 0, BLOCK]
    assert [result.predicted_tokens for result in results] == [0, BLOCK, BLOCK, 0, 0, BLOCK]
    assert [result.refusal for result in results] == [None] * 3 + ["no_backend", None, None]


def test_an_engine_that_joins_first_was_not_there_before() -> None:
    made = trace(*(request(10.0 * n, tokens=100) for n in range(6)))
    results = play(made, 2, Incident(Kind.JOIN, 1, 25.0))
    assert {result.engine for result in results[:3]} == {0}
    assert {result.engine for result in results[3:]} == {0, 1}


def test_a_flush_is_not_told() -> None:
    made = trace(*(request(10.0 * n, [1]) for n in range(3)))
    results = play(made, 1, Incident(Kind.FLUSH, 0, 15.0))
    assert [result.cached_tokens for result in results] == [0, BLOCK, 0]
    assert [result.predicted_tokens for result in results] == [0, BLOCK, BLOCK]
