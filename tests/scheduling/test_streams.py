"""How much of a stall streams can bear, computed by hand.

All streams aim at 0.1 s a token. Undisturbed they take 0.02 s and so gain 0.08 s with each
token; beside a prefill a token takes 0.12 s, and they lose 0.02 s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import pytest

from gateway.scheduling.load import BackendLoad
from gateway.scheduling.streams import _AIM, REMEMBERED, OutputLengths, Streams

PACE = 0.1 / _AIM


@dataclass(eq=False)
class Answer:
    began: float = 0.0


def engine(pace: float | None = PACE, step: float = 0.02) -> BackendLoad:
    load = BackendLoad(
        "a",
        prefill_rate=10_000.0,
        chunk_tokens=1000,
        step_seconds=step,
        stream_seconds=0.0,
        context_seconds=0.0,
    )
    load.pace = pace
    return load


def lengths(*tokens: int) -> OutputLengths:
    """Answers of these lengths, equally often, and no others."""
    learnt = OutputLengths()
    for turn in range(REMEMBERED):
        learnt.learn(tokens[turn % len(tokens)])
    return learnt


def streams(
    *made: int, load: BackendLoad | None = None, ends_at: Sequence[int] = (101,)
) -> Streams:
    """Streams that began at 0."""
    watched = Streams(load or engine())
    for tokens in made:
        watched.add(Answer(), lengths(*ends_at), partial(int, tokens))
    return watched


def bears(watched: Streams, now: float) -> float:
    """The longest stall that spoils nothing, in whole hundredths of a second."""
    return (
        next(stall for stall in range(10_000) if watched.spoilt(now, 0.0, (stall + 1) / 100)) / 100
    )


def test_one_that_has_just_begun_bears_what_it_can_make_up() -> None:
    assert bears(streams(1), now=0.0) == pytest.approx(100 * 0.08, abs=0.011)


def test_one_that_is_far_ahead_bears_any_stall() -> None:
    """Its other 50 tokens lose it 1 s at most; it is 4 s ahead."""
    assert streams(51).spoilt(1.0, 0.0, 1e9) == 0.0


def test_one_that_is_ahead_bears_as_much_more() -> None:
    """21 tokens in 1.5 s: 0.5 s ahead, with 80 to come that could lose it 1.6 s."""
    assert bears(streams(21), now=1.5) == pytest.approx(0.5 + 80 * 0.08, abs=0.011)


def test_one_that_is_about_to_end_cannot_make_it_up() -> None:
    assert bears(streams(100), now=9.9) == pytest.approx(0.08, abs=0.011)


def test_one_that_is_lost_already_does_not_count() -> None:
    """15 s behind, and 50 tokens gain it 4 s."""
    assert streams(51).spoilt(20.0, 0.0, 1e9) == 0.0


def test_one_that_is_lost_to_what_is_pending_does_not_count() -> None:
    assert streams(1).spoilt(0.0, 7.9, 0.2) == 1.0
    assert streams(1).spoilt(0.0, 8.1, 0.2) == 0.0


def test_without_a_pace_nothing_is_spoilt() -> None:
    assert streams(1, load=engine(pace=None)).spoilt(0.0, 0.0, 1e9) == 0.0


def test_a_prefill_that_takes_no_time_spoils_nothing() -> None:
    assert streams(1, 50, 100).spoilt(9.9, 0.0, 0.0) == 0.0


def test_lengths_are_a_distribution_and_streams_add_up() -> None:
    """Half of the answers end after 11 tokens and bear 0.8 s."""
    assert streams(1, ends_at=(11, 101)).spoilt(0.0, 0.0, 1.0) == 0.5
    assert streams(1, 1, ends_at=(11, 101)).spoilt(0.0, 0.0, 1.0) == 1.0
    assert streams(1, 1, ends_at=(11, 101)).spoilt(0.0, 0.0, 9.0) == 2.0


def test_one_that_is_longer_than_any_has_a_tenth_to_come() -> None:
    assert bears(streams(201), now=20.0) == pytest.approx(20 * 0.08, abs=0.011)


def test_where_steps_take_as_long_as_the_pace_a_stream_still_gains_a_little() -> None:
    watched = streams(1, load=engine(step=0.2))
    assert bears(watched, now=0.0) == pytest.approx(100 * 0.005, abs=0.011)


def test_those_that_come_and_go_are_seen_at_once() -> None:
    watched, answer = Streams(engine()), Answer()
    assert watched.spoilt(0.0, 0.0, 9.0) == 0.0
    watched.add(answer, lengths(101), lambda: 0)
    assert watched.spoilt(0.0, 0.0, 9.0) == 1.0
    watched.add(Answer(), lengths(101), lambda: 1)
    assert watched.spoilt(0.0, 0.0, 9.0) == 2.0
    watched.remove(answer)
    watched.remove(answer)
    assert len(watched) == 1
    assert watched.spoilt(0.0, 0.0, 9.0) == 1.0


def test_what_is_still_to_come_is_learnt() -> None:
    learnt = OutputLengths()
    before = learnt.left(0)
    assert before == sorted(before)
    assert 10 <= before[0] < before[-1] <= 2500
    for _ in range(REMEMBERED):
        learnt.learn(500)
    assert learnt.left(0) == [500] * 8
    assert learnt.left(499) == [1] * 8
    assert learnt.left(500) == [50] * 8
    for _ in range(REMEMBERED):
        learnt.learn(7)
    assert learnt.left(0) == [7] * 8
