"""Requests at a steady rate through all gateways, and what became of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable

import msgspec

from loadtests.chaos.gateway import Gateway
from loadtests.replicas.ground import text
from loadtests.replicas.site import CHAT, Balancer, ask
from loadtests.summary import percentile

RATE = 200.0
PREFIXES = 50
PREFIX_BYTES = 1200
NEW_BYTES = 100


class Steady:
    """
    Attributes:
        answers: of each request that has ended, when it was sent, the seconds that it took, and
            why it failed, if it did.
    """

    def __init__(self, gateways: Iterable[Gateway]) -> None:
        self.answers: list[tuple[float, float, str | None]] = []
        self._balancer = Balancer(gateways, 1)
        self._dice = random.Random("steady")
        self._prefixes = [text(self._dice, PREFIX_BYTES) for _ in range(PREFIXES)]
        self._stopped = False

    async def send(self) -> None:
        """Until `stop`; returns when all have ended."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not self._stopped:
                due += 1 / RATE
                await asyncio.sleep(due - time.monotonic())
                prompt = self._dice.choice(self._prefixes) + text(self._dice, NEW_BYTES)
                group.create_task(self._ask(prompt))
        self._balancer.close()

    def stop(self) -> None:
        self._stopped = True

    def failures(self) -> list[str]:
        return [error for *_, error in self.answers if error is not None]

    def p99(self, begin: float, end: float) -> float:
        """Seconds, of those sent in between."""
        taken = sorted(seconds for sent, seconds, _ in self.answers if begin <= sent < end)
        return percentile(taken, 0.99)

    async def _ask(self, prompt: str) -> None:
        sent = time.monotonic()
        answer = await self._balancer.post(CHAT, msgspec.json.encode(ask(prompt)))
        self.answers.append((sent, time.monotonic() - sent, answer.error))
