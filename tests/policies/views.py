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
    """A candidate with the rates that the gateway assumes before it has measured any."""

    id: str
    in_flight: int = 0
    decoding: int = 0
    pending_tokens: float = 0.0
    context_tokens: float = 0.0
    capacity_tokens: float = 500_000.0
    prefill_rate: float = 10_000.0
    step_seconds: float = 8e-3
    stream_seconds: float = 3e-5
    context_seconds: float = 8e-8


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
