"""A listener of its own for the admin API, so that the clients' network does not reach it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from gateway.config import ConfigError
from gateway.sockets import listen, url_of

logger = logging.getLogger("prefixgate")


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
        self._sockets: list[socket.socket] = []
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    def listen(self, sockets: list[socket.socket] | None = None) -> list[socket.socket]:
        """Take the address, before anything is served.

        Args:
            sockets: that have it already.

        Returns:
            The sockets that listen there.

        Raises:
            CannotListen: it is in use, or not ours.
        """
        self._sockets = sockets or listen(self._host, self._port, "admin.listen")
        return self._sockets

    async def start(self) -> None:
        """Raises:
        CannotListen: the address was not taken before, and cannot be.
        """
        if not self._sockets:
            self.listen()
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
        self._serving = asyncio.create_task(self._server.serve(self._sockets))
        for sock in self._sockets:
            logger.info("the admin API listens on %s", url_of(sock))

    async def stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
            self._sockets = []


class _Server(uvicorn.Server):
    """Signals are the main listener's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
