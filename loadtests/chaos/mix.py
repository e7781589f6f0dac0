"""The requests: what clients ask for, who they are, and which of them leave, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Any

import msgspec

from loadtests.chaos.answers import MODEL


class Kind(StrEnum):
    STREAM = "stream"
    WHOLE = "whole"
    EMBEDDING = "embedding"
    WRONG = "wrong"
    """Refused by the gateway: no JSON, or a model that nobody has."""


class Moment(StrEnum):
    """When a client leaves."""

    BODY = "in the body"
    WAIT = "after a while"
    """Mostly before an answer has begun: in the queue, or at a backend."""
    TOKEN = "in mid-stream"
    DONE = "right after [DONE]"


@dataclass(slots=True, frozen=True)
class Leave:
    """
    Attributes:
        after: seconds from sending for WAIT, events for TOKEN, a share of the body for BODY.
        reset: by a RST, else by a FIN.
    """

    moment: Moment
    after: float
    reset: bool


@dataclass(slots=True, frozen=True)
class Demand:
    """One request.

    Attributes:
        name: its own; engines put it into each token.
        tokens: that its answer has when it is whole.
    """

    name: str
    kind: Kind
    path: str
    headers: str
    body: bytes
    tokens: int
    leave: Leave | None


_KINDS = {Kind.STREAM: 0.68, Kind.WHOLE: 0.2, Kind.EMBEDDING: 0.1, Kind.WRONG: 0.02}
_MOMENTS = {Moment.BODY: 0.15, Moment.WAIT: 0.4, Moment.TOKEN: 0.3, Moment.DONE: 0.15}
LEAVING = 0.42
"""Some come too late: their answer has ended before."""
_BIG_SHARE = 0.02
_BIG = (100_000, 400_000)
_SYSTEMS = 24
_SYSTEM_SIZE = 2000
_PRIORITIES = ("high", "normal", "normal", "low")
_TENANTS = 6


def demands(count: int, seed: int, name: str = "r") -> Iterator[Demand]:
    """Requests `r0`, `r1`, ..., the same for the same seed."""
    random = Random(seed)
    systems = [_text(random, _SYSTEM_SIZE) for _ in range(_SYSTEMS)]
    filler = _text(random, _BIG[1])
    for number in range(count):
        yield _demand(f"{name}{number}", random, systems, filler)


def patient(seed: int) -> Iterator[Demand]:
    """Requests without end, all of them right, of clients that stay; `p0` and so on."""
    for demand in demands(1 << 30, seed, "p"):
        if demand.leave is None and demand.kind is not Kind.WRONG:
            yield demand


def _demand(name: str, random: Random, systems: list[str], filler: str) -> Demand:
    kind = random.choices([*_KINDS], [*_KINDS.values()])[0]
    tokens = random.randint(1, 10) if kind in (Kind.STREAM, Kind.WHOLE) else 1
    size = random.randint(*_BIG) if random.random() < _BIG_SHARE else random.randint(20, 400)
    text = f"{name} {filler[:size]}"
    if kind is Kind.EMBEDDING:
        path = "/v1/embeddings"
        asked: dict[str, Any] = {"model": MODEL, "input": text, "user": name}
    else:
        path = "/v1/chat/completions"
        asked = {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": random.choice(systems)},
                {"role": "user", "content": text},
            ],
            "max_tokens": tokens,
            "user": name,
            "stream": kind is Kind.STREAM,
        }
    body = msgspec.json.encode(asked)
    if kind is Kind.WRONG:
        body = body[:-1] if random.random() < 0.5 else body.replace(b'"chaos"', b'"nobody"', 1)
    headers = (
        f"authorization: Bearer tenant-{random.randrange(_TENANTS)}\r\n"
        f"x-prefixgate-priority: {random.choice(_PRIORITIES)}\r\n"
    )
    leave = _leave(kind, tokens, random) if random.random() < LEAVING else None
    return Demand(name, kind, path, headers, body, tokens, leave)


def _leave(kind: Kind, tokens: int, random: Random) -> Leave:
    moment = random.choices([*_MOMENTS], [*_MOMENTS.values()])[0]
    if kind is not Kind.STREAM and moment in (Moment.TOKEN, Moment.DONE):
        moment = Moment.WAIT
    after = random.random()
    if moment is Moment.WAIT:
        after = random.expovariate(1 / 0.03)
    elif moment is Moment.TOKEN:
        after = random.randint(1, tokens)
    return Leave(moment, after, random.random() < 0.5)


def _text(random: Random, size: int) -> str:
    return random.randbytes(size // 2 + 1).hex()[:size]
