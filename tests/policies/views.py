"""Candidates and requests for policy tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from gateway.types import Match, WorkClass
from policies.base import RouteRequest


@dataclass(slots=True)
class View:
    """A candidate with the rates that the gateway assumes before it has measured any.

    Attributes:
        shared_tokens: of its context, what the next request shares with those that run.
        spoilt: streams that any prefill would make miss their pace.
    """

    id: str
    in_flight: int = 0
    decoding: int = 0
    pending_tokens: float = 0.0
    context_tokens: float = 0.0
    other_tokens: float = 0.0
    capacity_tokens: float = 500_000.0
    prefill_rate: float = 10_000.0
    attention_context: float = 30_000.0
    chunk_tokens: int = 2048
    step_seconds: float = 8e-3
    stream_seconds: float = 3e-5
    context_seconds: float = 8e-8
    usual_rate: float = 10_000.0
    held_seconds: float = 0.0
    shared_tokens: float = 0.0
    spoilt: float = 0.0

    def pending_seconds(self, now: float) -> float:
        return self.pending_tokens / self.prefill_rate

    def queue_seconds(self, request: RouteRequest) -> float:
        return self.pending_seconds(request.now) + self.held_seconds

    def memory_with(self, request: RouteRequest) -> float:
        used = self.context_tokens + self.other_tokens
        return used + request.prompt_tokens - self.shared_tokens

    def spoilt_streams(self, now: float, seconds: float) -> float:
        return self.spoilt if seconds > 0.0 else 0.0


def views(ids: str, **facts: Any) -> list[View]:
    return [View(id, **facts) for id in ids]


def chain(*parts: str) -> bytes:
    """A chain with one block for each part."""
    link, links = 0, b""
    for part in parts:
        link = xxhash.xxh3_64_intdigest(part.encode(), seed=link)
        links += link.to_bytes(8, "big")
    return links


def request(
    *,
    tokens: int = 1000,
    held: Mapping[str, int] | None = None,
    links: bytes = b"",
    session: str | None = None,
    model: str = "m",
    output: int = 300,
    now: float = 0.0,
) -> RouteRequest:
    """A request; `held` is matched tokens by backend, at 100 tokens a block."""
    held = held or {}
    match = Match(
        {id: count // 100 for id, count in held.items()},
        {id: float(count) for id, count in held.items()},
    )
    return RouteRequest(model, links, tokens, output, match, session, WorkClass.DECODE, now)


def counts(choose: Callable[[int], str], times: int) -> dict[str, int]:
    """How often each answer was given."""
    totals: dict[str, int] = {}
    for turn in range(times):
        answer = choose(turn)
        totals[answer] = totals.get(answer, 0) + 1
    return totals
