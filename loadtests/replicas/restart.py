"""A million blocks: what they take, and how soon a new gateway has them."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from math import nan

import msgspec

from loadtests.chaos.gateway import Gateway
from loadtests.client import Client
from loadtests.process import HOST
from loadtests.redis.server import RedisServer
from loadtests.replicas.ground import Ground, text
from loadtests.replicas.site import CHAT, ask

BLOCKS = 1_000_000
PROMPT_BYTES = 32_000
"""8,000 tokens. Shorter prompts take more memory a block, longer ones less."""
AT_ONCE = 8
"""Requests by which the index is filled."""
SNAPSHOT_SECONDS = 30.0
"""For which a snapshot is waited for."""


@dataclass(slots=True, frozen=True)
class Restart:
    """
    Attributes:
        blocks: in the index of the gateway that learnt them; no two prompts have one in common.
        gateway, redis: bytes per million blocks.
        ready: seconds from its start until the new gateway is ready.
        back: share of the blocks that it has then.
    """

    blocks: int
    gateway: float
    redis: float
    ready: float
    back: float


async def measure(ground: Ground, server: RedisServer | None) -> Restart:
    learner, other = ground.gateway(), ground.gateway()
    rss, redis = learner.rss(), 0 if server is None else server.memory()
    client, dice = Client(HOST, learner.port), random.Random("restart")

    async def fill() -> None:
        while _blocks(learner) < BLOCKS:
            for _ in range(50):
                await client.post(CHAT, msgspec.json.encode(ask(text(dice, PROMPT_BYTES))))

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(fill())
    client.close()
    await asyncio.sleep(0.0 if server is None else SNAPSHOT_SECONDS)
    blocks = _blocks(learner)
    millions = blocks / 1e6
    gateway = (learner.rss() - rss) / millions
    stored = nan if server is None else (server.memory() - redis) / millions
    other.service.process.kill()
    began = time.monotonic()
    new = await asyncio.to_thread(ground.gateway)
    ready = time.monotonic() - began
    return Restart(blocks, gateway, stored, ready, _blocks(new) / blocks)


def _blocks(gateway: Gateway) -> int:
    return int(gateway.metrics().total("prefixgate_index_blocks"))
