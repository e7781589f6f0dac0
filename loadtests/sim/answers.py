"""Answers of the HTTP API: the bytes of streams and of JSON bodies, written as tokens come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.http.client import DirectClient, Headers
from loadtests.sim.calls import ApiError, Call
from loadtests.sim.metrics import LENGTH, STOP, EngineMetrics
from loadtests.sim.sequence import Sequence

JSON: Headers = [(b"content-type", b"application/json")]
EVENTS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
_DONE = b"data: [DONE]\n\n"
_WORD = "WORD"
"""Stands for a token's text while the bytes around it are made."""

encode = msgspec.json.encode


@dataclass(slots=True, frozen=True)
class Frames:
    """The bytes of one choice's events: `opening`, then per token `before`, its text, `after`.

    Attributes:
        last: in place of `after` for the last token.
    """

    opening: bytes
    before: bytes
    after: bytes
    last: bytes


@dataclass(slots=True, frozen=True)
class Shape:
    """How one of the two routes words its answers.

    Attributes:
        opening: whether a stream begins with the role.
        delta: the part of a streamed choice that carries a token's text.
        message: the part of a complete choice that carries all of it.
    """

    id_prefix: str
    object: str
    chunk_object: str
    opening: bool
    delta: Callable[[str], dict[str, Any]]
    message: Callable[[str], dict[str, Any]]


CHAT = Shape(
    id_prefix="chatcmpl-",
    object="chat.completion",
    chunk_object="chat.completion.chunk",
    opening=True,
    delta=lambda text: {"delta": {"content": text}},
    message=lambda text: {"message": {"role": "assistant", "content": text, "tool_calls": []}},
)
COMPLETION = Shape(
    id_prefix="cmpl-",
    object="text_completion",
    chunk_object="text_completion",
    opening=False,
    delta=lambda text: {"text": text},
    message=lambda text: {"text": text},
)


class Choice:
    """One of the texts asked for: listens to its sequence."""

    __slots__ = ("_answer", "index", "sequence", "words")

    sequence: Sequence

    def __init__(self, answer: Answer, index: int, words: list[bytes]) -> None:
        self._answer = answer
        self.index = index
        self.words = words

    def on_first_token(self, now: float) -> None:
        self._answer.metrics.first_token(self.sequence, now)

    def on_token(self, now: float) -> None:
        pass

    def on_finish(self, now: float) -> None:
        self._answer.ended(self, now)


class StreamedChoice(Choice):
    __slots__ = ("_at", "_frames", "_last", "_write")

    def __init__(
        self, answer: Answer, index: int, words: list[bytes], frames: Frames, client: DirectClient
    ) -> None:
        super().__init__(answer, index, words)
        self._frames = frames
        self._write = client.write
        self._at = 0
        self._last = len(words) - 1

    def on_first_token(self, now: float) -> None:
        super().on_first_token(now)
        self._write(self._frames.opening + self._event())

    def on_token(self, now: float) -> None:
        self._write(self._event())

    def _event(self) -> bytes:
        at, frames = self._at, self._frames
        self._at = at + 1
        return frames.before + self.words[at] + (frames.last if at == self._last else frames.after)


class Answer:
    """
    Args:
        show_cached: usage tells how many prompt tokens were cached.

    Attributes:
        done: set when nothing is left to write.
        members, choice_members: further ones of an answer that is not streamed, and of its choices.
        on_computed: told of the sequence that has ended, before the answer is.
    """

    def __init__(
        self,
        call: Call,
        shape: Shape,
        client: DirectClient,
        metrics: EngineMetrics,
        answer_id: str,
        show_cached: bool,
    ) -> None:
        self.metrics = metrics
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.choices: list[Choice] = []
        self.members: dict[str, Any] = {}
        self.choice_members: dict[str, Any] = {}
        self.on_computed: Callable[[Sequence, float], None] | None = None
        self._call = call
        self._shape = shape
        self._client = client
        self._show_cached = show_cached
        self._reason = LENGTH if call.capped else STOP
        self._head = {
            "id": shape.id_prefix + answer_id,
            "object": shape.chunk_object if call.stream else shape.object,
            "created": int(time.time()),
            "model": call.model,
        }
        self._left = 0
        if call.stream:
            client.start(200, EVENTS, None)

    def add_choice(self, words: list[bytes]) -> Choice:
        index = len(self.choices)
        self._left += 1
        choice = (
            StreamedChoice(self, index, words, self._frames(index), self._client)
            if self._call.stream
            else Choice(self, index, words)
        )
        self.choices.append(choice)
        return choice

    def ended(self, choice: Choice, now: float) -> None:
        self.metrics.ended(choice.sequence, now, self._reason)
        if self.on_computed is not None:
            self.on_computed(choice.sequence, now)
        self._left -= 1
        if self._left:
            return
        if self._call.stream:
            if self._call.include_usage:
                self._client.write(_event({**self._head, "choices": [], "usage": self._usage()}))
            self._client.write(_DONE)
        else:
            whole = {"choices": self._texts(), "usage": self._usage(), **self.members}
            body = encode({**self._head, **whole})
            self._client.start(200, JSON, len(body))
            self._client.write(body)
        self._client.end()
        self.leave()

    def fail(self, error: ApiError) -> None:
        """Nothing comes of it."""
        if self.done.done():
            return
        if self._call.stream:
            self._client.write(_event(error.body()) + _DONE)
        else:
            body = encode(error.body())
            self._client.start(error.status, JSON, len(body))
            self._client.write(body)
        self._client.end()
        self.leave()

    def leave(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _frames(self, index: int) -> Frames:
        def event(part: dict[str, Any], reason: str | None) -> bytes:
            choice = {"index": index, **part, "logprobs": None, "finish_reason": reason}
            return _event({**self._head, "choices": [choice]})

        shape = self._shape
        role = {"delta": {"role": "assistant", "content": ""}}
        quoted = b'"%b"' % _WORD.encode()
        before, after = event(shape.delta(_WORD), None).split(quoted)
        last = event(shape.delta(_WORD), self._reason).split(quoted)[1]
        opening = event(role, None) if shape.opening else b""
        return Frames(opening, before + b'"', b'"' + after, b'"' + last)

    def _texts(self) -> list[dict[str, Any]]:
        return [
            {
                "index": choice.index,
                **self._shape.message(b"".join(choice.words).decode()),
                "logprobs": None,
                "finish_reason": self._reason,
                "stop_reason": None,
                **self.choice_members,
            }
            for choice in self.choices
        ]

    def _usage(self) -> dict[str, Any]:
        # A prompt counts once, however many answers it was asked for.
        prompts = [choice.sequence for choice in self.choices[:: self._call.n]]
        return usage(
            prompts, sum(choice.sequence.generated for choice in self.choices), self._show_cached
        )


def usage(prompts: list[Sequence], completion_tokens: int, show_cached: bool) -> dict[str, Any]:
    """The usage object.

    Args:
        prompts: one sequence per prompt.
    """
    prompt_tokens = sum(sequence.request.input_tokens for sequence in prompts)
    counts: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }
    if show_cached:
        cached = sum(sequence.cached_tokens for sequence in prompts)
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


def _event(data: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % encode(data)
