from __future__ import annotations

import pytest

from loadtests.replay.player import LOOK, Mode, Player, Scenario
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace
from tests.loadtests.replay.made import PREFILL, ROTATE, STEP, fleet, request, trace


def play(made: Trace, mode: Mode, load: float = 1.0) -> list[Result]:
    player = Player(Scenario(made, fleet(), mode, load), ROTATE)
    player.play()
    return player.results


CONVERSATION = trace(
    request(10, tokens=1000, output_tokens=11),
    request(11, tokens=2000, output_tokens=1, parent=0, think=4.0),
    request(12, tokens=1000, output_tokens=1, parent=1, think=0.0),
)


def test_in_open_loop_requests_come_when_the_trace_says() -> None:
    results = play(CONVERSATION, Mode.OPEN)
    assert [result.arrival for result in results] == [10, 11, 12]
    assert [r.arrival for r in play(CONVERSATION, Mode.OPEN, 2.0)] == [5, 5.5, 6]


def test_in_closed_loop_a_turn_comes_its_think_time_after_the_answer() -> None:
    first, second, third = play(CONVERSATION, Mode.CLOSED)
    assert first.arrival == 10
    assert first.last == pytest.approx(10 + STEP + 1000 * PREFILL + 10 * STEP)
    assert second.arrival == pytest.approx(first.last + 4)
    assert third.arrival == second.last


def test_load_brings_conversations_closer_and_leaves_people_their_time() -> None:
    first, second, _ = play(CONVERSATION, Mode.CLOSED, 2.0)
    assert first.arrival == 5
    assert first.last is not None
    assert second.arrival == pytest.approx(first.last + 4)


def test_a_run_nobody_wants_any_more_ends() -> None:
    made = trace(*(request(n * LOOK, tokens=100) for n in range(10)))
    player = Player(Scenario(made, fleet()), ROTATE)
    looks = iter([True, True, False])
    player.play(wanted=lambda _: next(looks))
    assert sum(result.last is not None for result in player.results) < 4


def test_every_end_is_told() -> None:
    told: list[Result] = []
    player = Player(Scenario(CONVERSATION, fleet()), ROTATE, told.append)
    player.play()
    assert sorted(told, key=lambda result: result.arrival) == player.results
