"""A gateway on the test's own event loop, so that a test can see what it still holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from gateway.app import Gateway
from gateway.config import Settings
from gateway.config.reading import convert
from gateway.http.context import RequestContext
from gateway.listener import Listener
from gateway.process import listener_config
from tests.harness.raw import Answer, parse

WAIT = 20.0
"""Seconds after which something is taken never to come. What is right comes far sooner."""


class Asked:
    """A request that was sent, on a connection of its own.

    Attributes:
        answer: as much of it as has come.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._data = b""
        self.answer = Answer()

    async def until(self, condition: Callable[[Answer], bool]) -> Answer:
        """Read until the answer, or the part that has come, is as it should be, or has ended."""
        async with asyncio.timeout(WAIT):
            while self.answer.end is None and not condition(self.answer):
                data = await self._reader.read(1 << 16)
                self._data += data
                parsed = parse(self._data)
                if parsed is not None:
                    self.answer = parsed[0]
                if not data:
                    break
        return self.answer

    async def whole(self) -> Answer:
        await self.until(lambda answer: False)
        self.leave()
        return self.answer

    def leave(self) -> None:
        """Close the connection, whatever has come."""
        self._writer.close()


async def send(port: int, path: str, body: Any) -> Asked:
    """Args:
    port: of a gateway, on loopback.
    """
    data = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: gateway.test\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + data)
    return Asked(reader, writer)


class InsideGateway:
    """Attributes:
    gateway: serves, on a port of its own.
    """

    def __init__(self, gateway: Gateway, port: int) -> None:
        self.gateway = gateway
        self.port = port

    async def send(self, path: str, body: Any) -> Asked:
        return await send(self.port, path, body)

    async def ask(self, path: str, body: Any) -> Answer:
        return await (await self.send(path, body)).whole()

    def live(self, model: str) -> RequestContext | None:
        """What is known of a request under way for a model; None when there is none."""
        contexts = self.gateway.proxy.live.values()
        return next((each for each in contexts if each.record.model == model), None)

    @property
    def holds(self) -> list[str]:
        """What is held for requests: nothing once all have ended."""
        gateway = self.gateway
        loads = gateway.loads.values()
        return [
            *(f"request {id}" for id in gateway.proxy.live),
            *(f"in flight at {load.id}" for load in loads if load.in_flight),
            *(f"prefill pending at {load.id}" for load in loads if load.pending_tokens),
            *(f"context at {load.id}" for load in loads if load.context_tokens),
            *(["handover that is not settled"] * gateway.disagg.legs.unsettled),
            *(f"exchange with {id}" for id, each in gateway.upstreams.items() if each.busy),
        ]


@contextlib.asynccontextmanager
async def serving(settings: Mapping[str, Any]) -> AsyncIterator[InsideGateway]:
    """Args:
    settings: the config file's tree.
    """
    server = {"host": "127.0.0.1", "port": 1, "shutdown_delay": 0.0, "drain": 0.1}
    gateway = Gateway(convert({**settings, "server": server}, Settings, "test"))
    config = listener_config(gateway)
    config.load()
    listener = Listener(config, gateway)
    listener.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await listener.startup([listening])
        try:
            yield InsideGateway(gateway, listening.getsockname()[1])
        finally:
            await listener.shutdown()


async def eventually(condition: Callable[[], bool], seconds: float = WAIT) -> None:
    """Wait until something holds.

    Raises:
        TimeoutError: it did not come to hold in time.
    """
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # what it looks at is other threads' too
            await asyncio.sleep(0.005)
