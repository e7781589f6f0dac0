"""Commands that wait at the server, on a connection of their own."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from gateway.shared.breaker import Breaker
from gateway.shared.connection import Connection, Lost, Word
from gateway.shared.records import Away, Refused
from gateway.shared.replies import away, passing, redirect
from gateway.shared.servers import LIMIT, Servers

_TRIES = 3


class Reader:
    """For one caller: a command at a time. Its connection is made when it is first used."""

    def __init__(self, servers: Servers, breaker: Breaker) -> None:
        self._servers = servers
        self._breaker = breaker
        self._connection: Connection | None = None

    async def block(self, *words: Word, wait: float) -> Any:
        """One command that only reads, such as XREAD with BLOCK.

        Args:
            wait: seconds that it may wait at the server, the same that its words say.

        Raises:
            Away, Refused.
        """
        for _ in range(_TRIES):
            connection = await self._ready()
            limit = monotonic() + wait + LIMIT
            try:
                async with asyncio.timeout(wait + LIMIT):
                    reply = await connection.ask(words, limit)
            except TimeoutError:
                self._breaker.down(f"{connection.address} does not answer")
                raise Away(self._breaker.state.cause) from None
            if isinstance(reply, Lost):
                continue
            if isinstance(reply, Refused):
                to = redirect(reply, connection.address)
                if to is not None and to[0] == "MOVED":
                    self._servers.moved(to[1])
                    self.close()
                    continue
                if passing(reply):
                    raise Away("the cluster is moving our keys")
                cause = away(reply)
                if cause is None:
                    raise reply
                self._breaker.down(f"{connection.address} {cause}")
                raise Away(self._breaker.state.cause)
            return reply
        raise Away("the connection was lost")

    def close(self) -> None:
        """A later command makes a new connection."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _ready(self) -> Connection:
        if not self._breaker.up:
            raise Away(self._breaker.state.cause)
        connection = self._connection
        if connection is None or not connection.usable or connection.waiting:
            self.close()  # an answer may come yet for a caller that has gone
            connection = await self._servers.open()
            self._connection = connection
        return connection
