from __future__ import annotations

import pytest

from loadtests.replay.generators.prompt import Prompt
from loadtests.replay.generators.session import (
    ANSWER_SECONDS,
    ANSWER_TOKEN_SECONDS,
    Session,
    Turn,
    requests,
)


def turn(think: float, tokens: int, output: int = 100) -> Turn:
    return Turn(think, Prompt(tokens), output)


def test_turns_come_after_answer_and_think_time() -> None:
    [first, second] = requests([Session(5.0, [turn(0, 10), turn(30, 20)], "a")], 100.0)
    assert first.arrival == 5
    assert second.arrival == pytest.approx(35 + ANSWER_SECONDS + 100 * ANSWER_TOKEN_SECONDS)
    assert (first.parent, second.parent) == (None, 0)
    assert second.think == 30
    assert second.tenant == "a"


def test_sessions_are_merged_and_keep_their_parents() -> None:
    sessions = [
        Session(0.0, [turn(0, 1), turn(10, 2)]),
        Session(1.0, [turn(0, 3), turn(1, 4)]),
    ]
    found = requests(sessions, 100.0)
    assert [request.input_tokens for request in found] == [1, 3, 4, 2]
    assert [request.parent for request in found] == [None, None, 1, 0]


def test_what_lies_outside_is_cut_off() -> None:
    sessions = [Session(-5.0, [turn(0, 1), turn(10, 2), turn(10, 3), turn(80, 4)])]
    found = requests(sessions, 50.0)
    assert [request.input_tokens for request in found] == [2, 3]
    assert [request.parent for request in found] == [None, 0]
