"""A listener of its own for the admin API, so that the clients' network does not reach it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from gateway.config import ConfigError

BACKLOG = 128


class AdminListener:
    """Args:
    listen: HOST:PORT; an IPv6 address in brackets.
    """

    def __init__(self, app: ASGIApp, listen: str) -> None:
        host, _, port = listen.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        if self._port > 65_535:
            raise ConfigError(
                f"admin.listen: {listen!r} has a port above 65535", field="admin.listen"
            )
        self._app = app
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises:
        ConfigError: the address cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        try:
            [found, *_] = await loop.getaddrinfo(
                self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            listening = socket.create_server(
                found[4][:2], family=found[0], backlog=BACKLOG, reuse_port=False
            )
        except OSError as error:
            raise ConfigError(
                f"admin.listen: {self._host}:{self._port} cannot be listened on: {error.strerror}",
                field="admin.listen",
            ) from None
        config = uvicorn.Config(
            self._app,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config)
        self._serving = loop.create_task(self._server.serve([listening]))

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving


class _Server(uvicorn.Server):
    """Signals are the main listener's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
