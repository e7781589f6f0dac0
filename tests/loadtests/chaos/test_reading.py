"""What a reader of answers must notice."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from loadtests.chaos import answers
from loadtests.chaos.answers import Ask
from loadtests.chaos.reading import Reading

ASK = Ask(user="r1", stream=True, max_tokens=3)
EVENTS = list(answers.events(ASK, "e0.0", 400))
OTHER_ENGINE = list(answers.events(ASK, "e1.0", 400))
OTHER_REQUEST = list(answers.events(Ask(user="r2", stream=True, max_tokens=3), "e0.0", 400))
OURS = b'data: {"error":{"message":"m","type":"upstream_error","code":"incomplete"}}\n\n'


def read(events: Iterable[bytes], step: int = 1000) -> Reading:
    reading, data = Reading("r1"), b"".join(events)
    for at in range(0, len(data), step):
        reading.stream(data[at : at + step])
    return reading


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_stream_as_it_should_be(step: int) -> None:
    reading = read([b": waiting\n\n", *EVENTS], step)
    assert (reading.flaw, reading.tokens, reading.done, reading.error) == (None, 3, True, None)
    assert reading.at_boundary


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([*EVENTS[:2], *OTHER_ENGINE[2:]], id="spliced"),
        pytest.param([*EVENTS[:3], *EVENTS[2:]], id="a piece twice"),
        pytest.param([*EVENTS[:2], *EVENTS[3:]], id="a hole"),
        pytest.param(EVENTS[2:], id="no beginning"),
        pytest.param(OTHER_REQUEST, id="another's"),
        pytest.param([*EVENTS, EVENTS[1]], id="after the end"),
        pytest.param([*EVENTS[:2], OURS, EVENTS[2]], id="after our error"),
        pytest.param([*EVENTS[:2], OURS, b"data: [DONE]\n\n"], id="done after our error"),
        pytest.param([*EVENTS[:2], b"\x16\x03\n\n"], id="junk"),
        pytest.param([b"data: {\n\n"], id="no json"),
    ],
)
def test_what_must_not_be_is_noticed(events: list[bytes]) -> None:
    assert read(events).flaw is not None


def test_errors_are_told_apart_by_who_made_them() -> None:
    ours = read([*EVENTS[:2], OURS])
    assert ours.flaw is None
    assert ours.error_is_ours
    theirs = read([*EVENTS[:2], answers.error_event()])
    assert theirs.flaw is None
    assert theirs.error is not None
    assert not theirs.error_is_ours
    assert theirs.done


def test_half_an_event_is_no_boundary() -> None:
    assert not read([EVENTS[0], EVENTS[1][:10]]).at_boundary


@pytest.mark.parametrize(
    ("body", "tokens"),
    [(answers.whole(ASK, "e0.0", 400), 3), (answers.embedding(ASK, "e0.0", 400), 1)],
)
def test_whole_answers(body: bytes, tokens: int) -> None:
    reading = Reading("r1")
    reading.whole(body)
    assert (reading.flaw, reading.tokens) == (None, tokens)
    other = Reading("r2")
    other.whole(body)
    assert other.flaw is not None
