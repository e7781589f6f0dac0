"""What two gateways take that have nothing to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import nan

from loadtests.redis.server import RedisServer
from loadtests.replicas.ground import Ground

SETTLE = 5.0
SECONDS = 20.0


@dataclass(slots=True, frozen=True)
class Idle:
    """
    Attributes:
        cpu: share of one core that each gateway takes, on average.
        commands: per second at Redis, from each; NaN without one.
    """

    cpu: float
    commands: float


async def measure(ground: Ground, server: RedisServer | None) -> Idle:
    gateways = [ground.gateway(), ground.gateway()]
    await asyncio.sleep(SETTLE)
    commands = 0 if server is None else server.commands()
    before = sum(gateway.cpu() for gateway in gateways)
    await asyncio.sleep(SECONDS)
    times = len(gateways) * SECONDS
    cpu = (sum(gateway.cpu() for gateway in gateways) - before) / times
    return Idle(cpu, nan if server is None else (server.commands() - commands) / times)
