"""Sessions, and the requests that they make."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtests.replay.generators.prompt import Prompt
from loadtests.replay.trace import TraceRequest

HISTORY = 1200.0
"""Seconds for which sessions have been beginning when a trace begins, so that it starts in full
swing as recorded ones do."""
ANSWER_SECONDS = 0.5
ANSWER_TOKEN_SECONDS = 0.02
"""What an answer, and each of its tokens, is taken to have lasted where arrivals are recorded."""


@dataclass(slots=True, frozen=True)
class Turn:
    """
    Attributes:
        think: seconds from the end of the answer before it.
        max_tokens: what the client limits the output to.
    """

    think: float
    prompt: Prompt
    output_tokens: int
    max_tokens: int | None = None


@dataclass(slots=True, frozen=True)
class Session:
    start: float
    turns: Sequence[Turn]
    tenant: str = ""


def requests(sessions: Iterable[Session], seconds: float) -> list[TraceRequest]:
    """What arrives from 0 to `seconds`, in order. Turns whose parent came before that have none."""
    arrivals: list[tuple[float, int, int, Session, Turn]] = []
    for number, session in enumerate(sessions):
        time = session.start
        for index, turn in enumerate(session.turns):
            time += turn.think
            if 0.0 <= time < seconds:
                arrivals.append((time, number, index, session, turn))
            time += ANSWER_SECONDS + ANSWER_TOKEN_SECONDS * turn.output_tokens
    arrivals.sort(key=lambda arrival: arrival[:3])
    latest: dict[int, int] = {}
    found = []
    for place, (time, number, _, session, turn) in enumerate(arrivals):
        found.append(
            TraceRequest(
                arrival=time,
                input_tokens=turn.prompt.tokens,
                output_tokens=turn.output_tokens,
                blocks=turn.prompt.blocks,
                parent=latest.get(number),
                think=turn.think,
                tenant=session.tenant,
                max_tokens=turn.max_tokens,
            )
        )
        latest[number] = place
    return found
