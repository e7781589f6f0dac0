"""A gateway that is killed with requests in flight, as the others see it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time

import httpx
import msgspec

from gateway.config import Replication
from loadtests.chaos.gateway import Gateway
from loadtests.client import Client
from loadtests.process import HOST
from loadtests.replicas.ground import Ground, text
from loadtests.replicas.instant import HELD
from loadtests.replicas.site import CHAT, ask

IN_FLIGHT = 50
LEASE = Replication().lease + 0.25
"""Seconds after its last sign of life, right after which it is killed, and the time to see it."""
_PROMPT_BYTES = 600


async def measure(ground: Ground) -> float | None:
    """Seconds from the death of a gateway with `IN_FLIGHT` requests until another no longer counts
    them; None when it never counted any."""
    dying, other = ground.gateway(), ground.gateway()
    client, dice = Client(HOST, dying.port), random.Random("death")
    held = [
        asyncio.create_task(
            client.post(CHAT, msgspec.json.encode(ask(text(dice, _PROMPT_BYTES), tokens=HELD)))
        )
        for _ in range(IN_FLIGHT)
    ]
    try:
        if not await _becomes(other, IN_FLIGHT):
            return None
        os.kill(dying.pid, signal.SIGKILL)
        died = time.monotonic()
        return time.monotonic() - died if await _becomes(other, 0, 60.0) else None
    finally:
        for each in held:
            each.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        client.close()


async def _becomes(gateway: Gateway, in_flight: int, patience: float = 5.0) -> bool:
    """Whether a gateway comes to count so many requests in flight.

    Raises:
        ValueError: it counts fewer than none.
    """
    until = time.monotonic() + patience
    async with httpx.AsyncClient(base_url=f"http://{HOST}:{gateway.port}") as client:
        while time.monotonic() < until:
            backends = (await client.get("/admin/v1/backends")).json()
            found = sum(backend["load"]["in_flight"] for backend in backends)
            if found < 0:
                raise ValueError(f"{found} requests are in flight")
            if found == in_flight:
                return True
            await asyncio.sleep(0.02)
    return False
