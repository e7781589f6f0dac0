"""The way of what one gateway learns to another, many times a second, and what it costs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import msgspec

from loadtests.chaos.gateway import Gateway
from loadtests.client import Client
from loadtests.process import HOST
from loadtests.redis.server import RedisServer
from loadtests.replicas.ground import Ground, text
from loadtests.replicas.site import CHAT, ask, matched

RATE = 1000.0
SECONDS = 10.0
PROMPT_BYTES = 600
SAMPLE = 50
PATIENCE = 2.0
_WARM = 200
_POLL = 0.002


@dataclass(slots=True, frozen=True)
class Way:
    """
    Attributes:
        rate: prefixes learnt per second.
        seconds: from a prompt's first token at the client to when the other gateway knew it, of
            those that were waited for; without those that never got there, which are `lost`.
    """

    rate: float
    seconds: Sequence[float]
    lost: int


@dataclass(slots=True, frozen=True)
class Cost:
    """Seconds of CPU.

    Attributes:
        learner, follower: per learnt prefix; that of requests is in the learner's.
        redis: the same; NaN without one.
    """

    learner: float
    follower: float
    redis: float


async def measure(ground: Ground, sample: int = SAMPLE) -> Way:
    """
    Args:
        sample: one prompt in so many is waited for at the other gateway.
    """
    learner, follower = ground.gateway(), ground.gateway()
    client, dice = Client(HOST, learner.port), random.Random("way")
    seconds: list[float | None] = []

    async def teach(place: int) -> None:
        request = ask(text(dice, PROMPT_BYTES))
        answer = await client.post(CHAT, msgspec.json.encode(request))
        if answer.error is None and place % sample == 0:
            seconds.append(await _arrival(follower, request))

    await _at_rate(teach, float(_WARM), _WARM)
    seconds.clear()
    taken = await _at_rate(teach, RATE, int(RATE * SECONDS))
    client.close()
    arrived = sorted(each for each in seconds if each is not None)
    return Way(int(RATE * SECONDS) / taken, arrived, len(seconds) - len(arrived))


async def cost(ground: Ground, server: RedisServer | None) -> Cost:
    """The same, with nobody asking the follower. What it takes when nothing is learnt is taken
    off."""
    learner, follower = ground.gateway(), ground.gateway()
    client, dice = Client(HOST, learner.port), random.Random("cost")

    async def teach(place: int) -> None:
        await client.post(CHAT, msgspec.json.encode(ask(text(dice, PROMPT_BYTES))))

    def cpu() -> tuple[float, float, float]:
        return learner.cpu(), follower.cpu(), nan if server is None else server.cpu()

    await _at_rate(teach, float(_WARM), _WARM)
    before = cpu()
    await asyncio.sleep(SECONDS)
    idle = cpu()
    prefixes = int(RATE * SECONDS)
    taken = await _at_rate(teach, RATE, prefixes)
    after = cpu()
    client.close()
    share = taken / SECONDS
    return Cost(
        *(
            (end - middle - (middle - begin) * share) / prefixes
            for begin, middle, end in zip(before, idle, after, strict=True)
        )
    )


async def _at_rate(
    one: Callable[[int], Coroutine[Any, Any, None]], rate: float, count: int
) -> float:
    """Returns the seconds in which they were begun."""
    began = due = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for place in range(count):
            due += 1 / rate
            await asyncio.sleep(due - time.monotonic())
            group.create_task(one(place))
        return time.monotonic() - began


async def _arrival(follower: Gateway, request: dict[str, Any]) -> float | None:
    """Seconds until a gateway knows a request's prompt; None for never."""
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE:
        if await asyncio.to_thread(matched, follower, request) > 0:
            return time.monotonic() - began
        await asyncio.sleep(_POLL)
    return None
