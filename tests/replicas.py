"""Several gateways in one process, with one Redis; no requests are served but by call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import httpx

from gateway.app import Gateway
from gateway.config import Redis, Settings
from gateway.shared.link import Link
from gateway.shared.store import Store
from loadtests.redis.server import RedisServer
from tests.shared.bus import Bus

WAIT = 20.0
"""Seconds after which something is taken never to come. What is right comes far sooner."""


class Lone:
    """A gateway without Redis.

    Attributes:
        shown: headers of the last answer of the admin API.
    """

    def __init__(self, settings: Settings) -> None:
        self.gateway = Gateway(settings)
        self.state = self.gateway.overrides.state
        self.shown = httpx.Headers()
        transport = httpx.ASGITransport(self.gateway)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.http.aclose()
        for upstream in self.gateway.upstreams.values():
            upstream.close()

    async def ask(self, method: str, path: str, body: Any = None, status: int = 0) -> Any:
        """What the admin API answers; None where the answer is empty.

        Args:
            status: the one that is expected; 0 for any below 300.
        """
        answer = await self.http.request(method, f"/admin/v1{path}", json=body)
        assert answer.status_code == status or (not status and answer.is_success), answer.text
        self.shown = answer.headers
        return answer.json() if answer.content else None

    async def shows(self) -> list[Any]:
        """What the operators' decisions come to here."""
        backends = await self.ask("GET", "/backends")
        told = ("id", "url", "source", "state", "role", "models", "capacity_tokens")
        keys = await self.ask("GET", "/keys")
        return [
            [{name: backend[name] for name in told} for backend in backends],
            await self.ask("GET", "/policy"),
            await self.ask("GET", "/scheduling"),
            keys,
        ]


class Replica(Lone):
    """Started on entry, and stopped at the end as it would be by SIGTERM."""

    def __init__(self, redis: RedisServer, bus: Bus, settings: Settings) -> None:
        super().__init__(settings)
        self.link = Link(Redis(url=redis.url), time.monotonic)
        self.gateway.overrides.share(Store(self.link, 2.0), bus.join(self.state))

    async def __aenter__(self) -> Self:
        await self.link.start()
        await self.state.start(0.2)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.state.stop()
        await self.link.stop()
        await super().__aexit__(*error)


async def until(condition: Callable[[], bool]) -> float:
    """Returns:
    Seconds that it took.
    """
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < WAIT, "it has not come"
        await asyncio.sleep(0.005)
    return time.monotonic() - began


async def agree(replicas: Sequence[Replica]) -> None:
    """Wait until all have read the same version."""
    await until(lambda: len({replica.state.version for replica in replicas}) == 1)
