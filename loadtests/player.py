"""Plays a workload: sessions open-loop at their arrival times, the turns of each closed-loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from loadtests.client import Answer
from loadtests.sample import Sample
from loadtests.workload import Session

_CHAT = "/v1/chat/completions"
_TICK = 0.02


@dataclass(slots=True)
class Recording:
    """A played workload.

    Attributes:
        samples: every request that was sent, in order of completion.
        seconds: from the start to the end of the last answer.
        lags: seconds that the client's event loop was late, once a tick. When these are large the
            client, or the whole machine, was too busy for its times to mean anything.
    """

    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0
    lags: list[float] = field(default_factory=list)


class Poster(Protocol):
    """What sends requests; satisfied by `loadtests.client.Client`."""

    async def post(self, path: str, body: bytes) -> Answer: ...


async def play(
    client: Poster,
    model: str,
    sessions: Sequence[Session],
    observe: Callable[[Sample], None] = lambda sample: None,
) -> Recording:
    """Send all sessions and wait for their answers.

    A session ends with its first failed request: its next turn would need the missing answer.

    Args:
        observe: called after every request; what it raises ends the run and is raised here.
    """
    loop = asyncio.get_running_loop()
    recording = Recording()
    start = loop.time()
    ticker = asyncio.create_task(_watch_lag(recording.lags))

    async def follow(session: Session) -> None:
        await asyncio.sleep(max(0.0, start + session.arrival - loop.time()))
        messages = [{"role": "system", "content": session.system}]
        for number, turn in enumerate(session.turns):
            await asyncio.sleep(turn.think)
            messages.append({"role": "user", "content": turn.text})
            answer = await client.post(_CHAT, _body(model, messages, turn.max_tokens))
            sample = _sample(session, number, answer, start)
            recording.samples.append(sample)
            observe(sample)
            if sample.error is not None:
                return
            messages.append({"role": "assistant", "content": answer.text})

    try:
        async with asyncio.TaskGroup() as group:
            for session in sessions:
                group.create_task(follow(session))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        ticker.cancel()
        recording.seconds = loop.time() - start
    return recording


def _body(model: str, messages: list[dict[str, str]], max_tokens: int) -> bytes:
    return msgspec.json.encode(
        {
            "model": model,
            "messages": messages,
            "max_tokens": max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


def _sample(session: Session, turn: int, answer: Answer, start: float) -> Sample:
    usage = answer.usage
    return Sample(
        session=session.name,
        turn=turn,
        kind=session.kind,
        sent=answer.sent - start,
        seconds=answer.ended - answer.sent,
        ttft=answer.ttft,
        tpot=answer.tpot,
        prompt_tokens=0 if usage is None else usage.prompt_tokens,
        cached_tokens=0 if usage is None else usage.cached_tokens,
        output_tokens=answer.output_tokens,
        backend=answer.headers.get(b"x-prefixgate-backend", b"").decode("latin-1"),
        decision=answer.headers.get(b"x-prefixgate-decision", b"").decode("latin-1"),
        error=answer.error,
    )


async def _watch_lag(lags: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _TICK
        await asyncio.sleep(_TICK)
        lags.append(max(0.0, loop.time() - due))
