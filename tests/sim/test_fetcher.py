from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from gateway.types import Role
from loadtests.sim.half import HalfOptions
from loadtests.sim.legs import Protocol
from loadtests.sim.server import Options, SimServer
from tests.sim.support import profile


def test_its_connections_end_with_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[httpx.AsyncClient] = []

    class Client(httpx.AsyncClient):
        async def aclose(self) -> None:
            closed.append(self)
            await super().aclose()

    monkeypatch.setattr(httpx, "AsyncClient", Client)

    async def live() -> None:
        half = HalfOptions(Role.DECODE, Protocol.NIXL_PULL, "127.0.0.1", 1)
        server = SimServer(profile(), Options(("m",), half=half))
        said: list[dict[str, Any]] = []
        told = iter(({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}))

        async def receive() -> dict[str, Any]:
            return next(told)

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        await server({"type": "lifespan"}, receive, send)
        assert [each["type"] for each in said] == [
            "lifespan.startup.complete",
            "lifespan.shutdown.complete",
        ]

    asyncio.run(live())
    assert len(closed) == 1
