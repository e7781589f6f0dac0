"""A million blocks: what they take, and how soon a new gateway has them."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from math import nan
from statistics import fmean

import msgspec

from loadtests.chaos.gateway import Gateway
from loadtests.client import Client
from loadtests.process import HOST
from loadtests.replicas.ground import Ground, text
from loadtests.replicas.site import CHAT, ask, matched

BLOCKS = 1_000_000
PROMPT_BYTES = 400_000
AT_ONCE = 8
"""Requests by which the index is filled."""
ASKED = 200
"""Prompts by which it is told what a gateway knows."""
FIRST_SECONDS = 10.0
SNAPSHOT_SECONDS = 30.0
"""For which a snapshot is waited for."""


@dataclass(slots=True, frozen=True)
class Restart:
    """
    Attributes:
        blocks: in the index of the gateway that learnt them.
        gateway, redis: bytes per million blocks.
        ready: seconds from its start until the new gateway is ready.
        back: share of the blocks that it has then.
        known: of what the old gateway would find cached, the share that the new one would, in its
            first ten seconds.
    """

    blocks: int
    gateway: float
    redis: float
    ready: float
    back: float
    known: float


async def measure(ground: Ground) -> Restart:
    learner, other = ground.gateway(), ground.gateway()
    rss, redis = learner.rss(), ground.redis.memory() if ground.redis else 0
    client, dice = Client(HOST, learner.port), random.Random("restart")
    prompts: list[str] = []

    async def fill() -> None:
        while _blocks(learner) < BLOCKS:
            for _ in range(10):
                prompts.append(text(dice, PROMPT_BYTES))
                await client.post(CHAT, msgspec.json.encode(ask(prompts[-1])))
                del prompts[:-ASKED]

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(fill())
    client.close()
    await asyncio.sleep(SNAPSHOT_SECONDS if ground.redis else 0.0)
    blocks = _blocks(learner)
    millions = blocks / 1e6
    gateway = (learner.rss() - rss) / millions
    stored = (ground.redis.memory() - redis) / millions if ground.redis else nan
    other.service.process.kill()
    began = time.monotonic()
    new = await asyncio.to_thread(ground.gateway)
    ready = time.monotonic() - began
    back = _blocks(new) / blocks
    shares = []
    for prompt in prompts:
        if time.monotonic() > began + ready + FIRST_SECONDS:
            break
        there = await asyncio.to_thread(matched, learner, ask(prompt))
        found = await asyncio.to_thread(matched, new, ask(prompt))
        shares.append(min(1.0, found / there) if there else 1.0)
    return Restart(blocks, gateway, stored, ready, back, fmean(shares))


def _blocks(gateway: Gateway) -> int:
    return int(gateway.metrics().total("prefixgate_index_blocks"))
