"""What two gateways take that have nothing to do."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from math import nan

from loadtests.redis.server import RedisServer
from loadtests.replicas.ground import Ground

SETTLE = 5.0
SECONDS = 10.0
COMMANDS = "prefixgate_redis_commands_total"


@dataclass(slots=True, frozen=True)
class Idle:
    """
    Attributes:
        cpu: share of one core that each gateway takes, on average.
        commands: per second, of each.
        redis: share of one core that Redis takes for each of them; NaN without one.
    """

    cpu: float
    commands: float
    redis: float


async def measure(ground: Ground, server: RedisServer | None) -> Idle:
    gateways = [ground.gateway(), ground.gateway()]

    def taken() -> tuple[float, float, float]:
        cpu = sum(gateway.cpu() for gateway in gateways)
        asked = sum(gateway.metrics().total(COMMANDS) for gateway in gateways)
        return cpu, asked, nan if server is None else server.cpu()

    await asyncio.sleep(SETTLE)
    before = taken()
    await asyncio.sleep(SECONDS)
    times = len(gateways) * SECONDS
    return Idle(*((end - begin) / times for begin, end in zip(before, taken(), strict=True)))
