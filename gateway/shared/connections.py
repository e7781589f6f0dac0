"""The connections that commands share: few, made when there is use for them."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from gateway.shared.address import Address
from gateway.shared.breaker import Breaker
from gateway.shared.connection import Connection, Unsent, Word
from gateway.shared.records import Away
from gateway.shared.servers import Servers

_PAUSE = 1.0
"""Seconds before another one is tried for when the last one could not be made."""


class Connections:
    """Args:
    most: as many are there at a time, and one more while a cluster moves our keys.
    breaker: taken down when there is no connection and none can be made.
    """

    def __init__(self, servers: Servers, most: int, breaker: Breaker) -> None:
        self._servers = servers
        self._most = most
        self._breaker = breaker
        self._open: list[Connection] = []
        self._opening: asyncio.Task[None] | None = None
        self._not_before = 0.0
        self._waiters: list[asyncio.Future[Any]] = []
        self._importing: Connection | None = None
        self._lock = asyncio.Lock()

    def pick(self) -> Connection | None:
        """The one with the fewest commands under way; None when there is none just now."""
        best: Connection | None = None
        for connection in self._open:
            if connection.usable and (best is None or connection.waiting < best.waiting):
                best = connection
        if best is None or (best.waiting and len(self._open) < self._most):
            self._start_opening(at_once=best is None)
        return best

    def coming(self) -> asyncio.Future[Any]:
        """Becomes `Unsent` once there is a connection, or none can be made."""
        waiter: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        return waiter

    def begin(self, connection: Connection) -> None:
        """With this one, which `lost` was given to."""
        self._open = [connection]
        self._not_before = 0.0

    def lost(self, connection: Connection) -> None:
        """Told by connections that have ended."""
        if connection in self._open:
            self._open.remove(connection)
            self._breaker.state.reconnects += 1
            if not self._open:
                self._start_opening(at_once=True)

    def move(self, address: Address) -> None:
        """All our keys are at this server of the cluster."""
        self._servers.moved(address)
        for connection in [each for each in self._open if each.address != address]:
            self._open.remove(connection)
            connection.retire()

    async def ask_at(
        self, address: Address, words: tuple[Word, ...], limit: float
    ) -> asyncio.Future[Any]:
        """Send a command to the server that our keys are being moved to.

        Raises:
            Away.
        """
        async with self._lock:
            connection = self._importing
            if connection is None or not connection.usable or connection.address != address:
                if connection is not None:
                    connection.retire()
                self._importing = connection = await self._servers.open_at(address)
        connection.ask(("ASKING",), limit)
        return connection.ask(words, limit)

    def check(self, now: float) -> None:
        """Give up those whose answers are overdue."""
        for connection in [*self._open]:
            connection.check(now)

    def close(self) -> None:
        """End all; what was asked becomes `Lost`."""
        connections, self._open = self._open, []
        if self._importing is not None:
            connections.append(self._importing)
            self._importing = None
        for connection in connections:
            connection.abort()
        if self._opening is not None:
            self._opening.cancel()
        self._tell()

    def _start_opening(self, *, at_once: bool) -> None:
        loop = asyncio.get_running_loop()
        if self._opening is None and (at_once or monotonic() >= self._not_before):
            self._opening = loop.create_task(self._open_another())
            self._opening.add_done_callback(self._opened)

    async def _open_another(self) -> None:
        try:
            connection = await self._servers.open(self.lost)
        except Away as error:
            self._not_before = monotonic() + _PAUSE
            if not self._open:
                self._breaker.down(str(error))
            return
        if connection.usable:
            self._open.append(connection)
            self._breaker.state.server = str(connection.address)

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        self._tell()

    def _tell(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(Unsent())
