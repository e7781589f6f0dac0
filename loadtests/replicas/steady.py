"""Requests at a steady rate through all gateways, and what became of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import cycle

import msgspec

from loadtests.chaos.gateway import Gateway
from loadtests.client import Client
from loadtests.process import HOST
from loadtests.replicas.ground import text
from loadtests.replicas.site import CHAT, ask
from loadtests.summary import percentile

RATE = 300.0
"""Of which a third goes to the gateway that has no Redis."""
PREFIXES = 50
PREFIX_BYTES = 1200
NEW_BYTES = 100


@dataclass(slots=True, frozen=True)
class Taken:
    """
    Attributes:
        sent: when.
        seconds: that the answer took.
        error: why it failed; None when it did not.
    """

    gateway: Gateway
    sent: float
    seconds: float
    error: str | None


class Steady:
    """Requests go to the gateways in turn, so that what else the machine does meets all alike.

    Attributes:
        answers: of each request that has ended.
    """

    def __init__(self, gateways: Iterable[Gateway]) -> None:
        self.answers: list[Taken] = []
        self._clients = [(gateway, Client(HOST, gateway.port)) for gateway in gateways]
        self._dice = random.Random("steady")
        self._prefixes = [text(self._dice, PREFIX_BYTES) for _ in range(PREFIXES)]
        self._stopped = False

    async def send(self) -> None:
        """Until `stop`; returns when all have ended."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for gateway, client in cycle(self._clients):
                if self._stopped:
                    break
                due += 1 / RATE
                await asyncio.sleep(due - time.monotonic())
                prompt = self._dice.choice(self._prefixes) + text(self._dice, NEW_BYTES)
                group.create_task(self._ask(gateway, client, prompt))
        for _, client in self._clients:
            client.close()

    def stop(self) -> None:
        self._stopped = True

    def failures(self) -> list[str]:
        return [answer.error for answer in self.answers if answer.error is not None]

    def p99(self, gateways: Collection[Gateway], begin: float, end: float) -> float:
        """Seconds, of what was sent to any of them in between."""
        return percentile(
            sorted(
                answer.seconds
                for answer in self.answers
                if answer.gateway in gateways and begin <= answer.sent < end
            ),
            0.99,
        )

    async def _ask(self, gateway: Gateway, client: Client, prompt: str) -> None:
        sent = time.monotonic()
        answer = await client.post(CHAT, msgspec.json.encode(ask(prompt)))
        self.answers.append(Taken(gateway, sent, time.monotonic() - sent, answer.error))
