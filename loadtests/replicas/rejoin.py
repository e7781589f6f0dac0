"""One of two gateways is restarted under a steady load of sessions: what turns find cached that go
through it in its first seconds, as their engines count it.

A turn goes through any gateway that is ready, as behind a load balancer. What could be found is
all of the prompt of the turn before.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

import msgspec

from loadtests.chaos.gateway import Gateway
from loadtests.client import Client
from loadtests.process import HOST, Processes
from loadtests.replicas.ground import text
from loadtests.replicas.site import CHAT, MODEL, Site

ENGINES = 3
SPEED = 8.0
KV_TOKENS = 1_000_000
SESSIONS = 60
TURNS = 8
THINK = 1.5
"""Seconds from an answer to the next turn, on average."""
TURN_BYTES = 1600
WARM = 15.0
STEADY = 20.0
AWAY = 3.0
FIRST = 10.0
"""Seconds after it is ready that count as its first."""


@dataclass(slots=True, frozen=True)
class Turn:
    """
    Attributes:
        at: when it was sent.
        gateway: that it went through.
        there, found: tokens of the turn before, and those of them that were cached.
    """

    at: float
    gateway: Gateway
    there: int
    found: int


@dataclass(slots=True, frozen=True)
class Rejoin:
    """
    Attributes:
        steady: share of the tokens that could be found which were, before the restart.
        first: the same after it, of the turns through the gateway that was restarted.
        turns: that this is of.
        failed: turns, all in all.
    """

    steady: float
    first: float
    turns: int
    failed: int

    @property
    def kept(self) -> float:
        return self.first / self.steady


class Talks:
    """
    Attributes:
        ready: gateways that turns go through.
        turns: follow-ups that were answered.
        failed: turns that were not.
    """

    def __init__(self, gateways: Sequence[Gateway]) -> None:
        self.ready = {gateway: Client(HOST, gateway.port) for gateway in gateways}
        self.turns: list[Turn] = []
        self.failed = 0
        self._dice = random.Random("rejoin")

    async def talk(self) -> None:
        """One session after the other, until it is cancelled."""
        dice = self._dice
        await asyncio.sleep(dice.uniform(0, THINK * TURNS))
        while True:
            messages: list[dict[str, str]] = []
            before = 0
            for _ in range(TURNS):
                messages.append({"role": "user", "content": text(dice, TURN_BYTES)})
                before = await self._turn(messages, before)
                await asyncio.sleep(dice.uniform(0.5, 1.5) * THINK)

    async def _turn(self, messages: list[dict[str, str]], before: int) -> int:
        """Tokens of its prompt."""
        gateway, client = self._dice.choice([*self.ready.items()])
        at = time.monotonic()
        answer = await client.post(CHAT, msgspec.json.encode(_body(messages)))
        if answer.error is not None or answer.usage is None:
            self.failed += 1
            return before
        if before:
            found = min(answer.usage.cached_tokens, before)
            self.turns.append(Turn(at, gateway, before, found))
        messages.append({"role": "assistant", "content": answer.text})
        return answer.usage.prompt_tokens


async def measure(site: Site, processes: Processes, restart: Any) -> Rejoin:
    """
    Args:
        restart: starts a gateway like the others, and returns it once it is ready.
    """
    talks = Talks(site.gateways)
    sessions = [asyncio.create_task(talks.talk()) for _ in range(SESSIONS)]
    try:
        await asyncio.sleep(WARM + STEADY)
        old = site.gateways[0]
        stopped = time.monotonic()
        del talks.ready[old]
        await asyncio.to_thread(processes.stop, old.service)
        await asyncio.sleep(AWAY)
        new = await asyncio.to_thread(restart)
        began = time.monotonic()
        talks.ready[new] = Client(HOST, new.port)
        await asyncio.sleep(FIRST)
    finally:
        for session in sessions:
            session.cancel()
        await asyncio.gather(*sessions, return_exceptions=True)
        for client in talks.ready.values():
            client.close()
    steady = [turn for turn in talks.turns if stopped - STEADY <= turn.at < stopped]
    first = [turn for turn in talks.turns if turn.at >= began and turn.gateway is new]
    return Rejoin(_share(steady), _share(first), len(first), talks.failed)


def _share(turns: Sequence[Turn]) -> float:
    there = sum(turn.there for turn in turns)
    return sum(turn.found for turn in turns) / there if there else nan


def _body(messages: Sequence[dict[str, str]]) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": messages,
        "max_tokens": 16,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
