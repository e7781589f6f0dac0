"""The routes whose bodies carry a prompt, and how a conversation looks on each of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]


def text(name: str, length: int) -> str:
    """Words of a pseudo-random text; texts of different names share no prefix."""
    parts: list[str] = []
    size = 0
    while size < length:
        word = hashlib.blake2b(f"{name}/{len(parts)}".encode(), digest_size=4).hexdigest()
        parts.append(word)
        size += len(word) + 1
    return " ".join(parts)[:length]


@dataclass(frozen=True, slots=True)
class Route:
    """Attributes:
    body: the request for a conversation so far; user and assistant take turns.
    streams: the route has an event stream that ends with a marker of its own.
    """

    name: str
    path: str
    body: Callable[[Sequence[str]], Json]
    streams: bool = True

    def stream(self, turns: Sequence[str] = ("hello",)) -> Json:
        return {**self.body(turns), "stream": True}


def _messages(turns: Sequence[str]) -> list[Json]:
    return [
        {"role": "assistant" if number % 2 else "user", "content": turn}
        for number, turn in enumerate(turns)
    ]


def _items(turns: Sequence[str]) -> list[Json]:
    return [{"type": "message", **message} for message in _messages(turns)]


CHAT = Route(
    "chat", "/v1/chat/completions", lambda turns: {"model": "m", "messages": _messages(turns)}
)
COMPLETIONS = Route(
    "completions", "/v1/completions", lambda turns: {"model": "m", "prompt": "\n".join(turns)}
)
RESPONSES = Route(
    "responses", "/v1/responses", lambda turns: {"model": "m", "input": _items(turns)}
)
MESSAGES = Route(
    "messages",
    "/v1/messages",
    lambda turns: {"model": "m", "max_tokens": 64, "messages": _messages(turns)},
)
EMBEDDINGS = Route(
    "embeddings",
    "/v1/embeddings",
    lambda turns: {"model": "m", "input": "\n".join(turns)},
    streams=False,
)
RERANK = Route(
    "rerank",
    "/v1/rerank",
    lambda turns: {"model": "m", "query": "\n".join(turns), "documents": ["one", "two"]},
    streams=False,
)
SCORE = Route(
    "score",
    "/v1/score",
    lambda turns: {"model": "m", "text_1": "\n".join(turns), "text_2": "other"},
    streams=False,
)

STREAMING = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
ALL = (*STREAMING, EMBEDDINGS, RERANK, SCORE)
