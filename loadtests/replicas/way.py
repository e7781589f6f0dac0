"""The way of what one gateway learns to another, many times a second."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from loadtests.chaos.gateway import Gateway
from loadtests.client import Client
from loadtests.process import HOST
from loadtests.replicas.ground import Ground, text
from loadtests.replicas.site import CHAT, ask, matched

RATE = 1000.0
SECONDS = 10.0
PROMPT_BYTES = 600
SAMPLE = 50
"""One prompt in so many is waited for at the other gateway."""
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
        learner, follower: seconds of CPU per learnt prefix.
    """

    rate: float
    seconds: Sequence[float]
    lost: int
    learner: float
    follower: float


async def measure(ground: Ground) -> Way:
    learner, follower = ground.gateway(), ground.gateway()
    client, dice = Client(HOST, learner.port), random.Random("way")
    seconds: list[float | None] = []

    async def teach(place: int) -> None:
        request = ask(text(dice, PROMPT_BYTES))
        answer = await client.post(CHAT, msgspec.json.encode(request))
        if answer.error is None and place % SAMPLE == 0:
            seconds.append(await _arrival(follower, request))

    await _at_rate(teach, float(_WARM), _WARM)
    seconds.clear()
    before, began = (learner.cpu(), follower.cpu()), time.monotonic()
    prefixes = int(RATE * SECONDS)
    await _at_rate(teach, RATE, prefixes)
    taken = time.monotonic() - began
    client.close()
    arrived = sorted(each for each in seconds if each is not None)
    return Way(
        prefixes / taken,
        arrived,
        len(seconds) - len(arrived),
        (learner.cpu() - before[0]) / prefixes,
        (follower.cpu() - before[1]) / prefixes,
    )


async def _at_rate(
    one: Callable[[int], Coroutine[Any, Any, None]], rate: float, count: int
) -> None:
    due = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for place in range(count):
            due += 1 / rate
            await asyncio.sleep(due - time.monotonic())
            group.create_task(one(place))


async def _arrival(follower: Gateway, request: dict[str, Any]) -> float | None:
    """Seconds until a gateway knows a request's prompt; None for never."""
    began = time.monotonic()
    while time.monotonic() < began + PATIENCE:
        if await asyncio.to_thread(matched, follower, request) > 0:
            return time.monotonic() - began
        await asyncio.sleep(_POLL)
    return None
