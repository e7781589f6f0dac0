"""The listening socket, and how it stops: notice, drain, end.

signal ─► not ready, all is served ─► no new connections, ─► what is left is cut short
          for `shutdown_delay`         nothing waits, `drain`    (a second signal: at once)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

import uvicorn

from gateway.app import Gateway
from gateway.sockets import BACKLOG, url_of

logger = logging.getLogger("prefixgate")

TICK = 0.05
FLUSH_SECONDS = 1.0
"""How long the ends of answers that were cut short may take to be read."""
FORCED_SECONDS = 5.0
"""After a second signal the process is gone by then, whatever keeps it."""


class Listener(uvicorn.Server):
    """Attributes:
    exit_code: 0 when a signal to stop was obeyed in peace, else as shells say it: 128 and the
        signal's number.
    """

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self.exit_code = 0
        self._gateway = gateway

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._gateway.stopping = True
        if self.should_exit:
            self._end_now(128 + sig)
        elif sig == signal.SIGINT:
            self.exit_code = 128 + sig
        self.should_exit = True

    def _end_now(self, code: int) -> None:
        if self.force_exit:
            return
        self.force_exit = True
        self.exit_code = code
        # Not an alarm: the first process of a container would not hear it.
        last = threading.Timer(FORCED_SECONDS, os._exit, (code,))
        last.daemon = True
        last.start()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn would raise the signal once more at the end, and end the process by it.
        before = {
            each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        await self.settle()
        for sock in sockets or ():
            self.servers.append(await self.accept_on(sock))
            shown = url_of(sock, "https" if self.config.ssl else "http")
            logger.info("listening on %s, process %d", shown, os.getpid())

    async def settle(self) -> None:
        """What is waited for before the first connection is taken: nothing here, as whoever sends
        traffic can ask whether this process is ready."""

    async def accept_on(self, sock: socket.socket) -> asyncio.Server:
        """Serve the connections that come to a socket until what is returned is closed."""
        # uvicorn's own would leave a connection a minute for its handshake.
        tls = self.config.ssl
        handshake = None if tls is None else self._gateway.settings.server.head_timeout
        return await asyncio.get_running_loop().create_server(
            self._protocol,
            sock=sock,
            ssl=tls,
            backlog=BACKLOG,
            ssl_handshake_timeout=handshake,
        )

    def accept_no_more(self) -> None:
        for server in self.servers:
            server.close()

    def _protocol(self) -> asyncio.Protocol:
        make: Any = self.config.http_protocol_class
        protocol: asyncio.Protocol = make(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        settings, state = self._gateway.settings.server, self.server_state
        logger.info("stopping: not ready, serving for another %g s", settings.shutdown_delay)
        await self._until(lambda: False, settings.shutdown_delay)
        self.accept_no_more()
        self._gateway.pools.close()
        for connection in tuple(state.connections):
            connection.shutdown()
        if state.tasks:
            logger.info("stopping: %d requests may take %g s", len(state.tasks), settings.drain)
        await self._until(lambda: not state.tasks and not state.connections, settings.drain)
        if state.tasks:
            logger.warning("stopping: %d requests are cut short", len(state.tasks))
        for task in tuple(state.tasks):
            task.cancel()
        await self._until(
            lambda: not state.tasks and not state.connections, FLUSH_SECONDS, forced=True
        )
        for connection in tuple(state.connections):
            connection.transport.abort()
        await self.lifespan.shutdown()
        logger.info("stopped")

    async def _until(
        self, done: Callable[[], bool], seconds: float, *, forced: bool = False
    ) -> None:
        """Wait for something, for so long at most.

        Args:
            forced: a second signal does not end the wait.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not done() and (forced or not self.force_exit) and loop.time() < end:  # noqa: ASYNC110
            # Connections and tasks are uvicorn's, which looks at them the same way.
            await asyncio.sleep(min(TICK, max(0.0, end - loop.time())))
