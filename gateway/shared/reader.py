"""Commands that wait at the server, on a connection of their own."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.shared.connection import Connection, Lost, Word
from gateway.shared.link import Link
from gateway.shared.records import Away, Refused
from gateway.shared.replies import away, redirect
from gateway.shared.servers import LIMIT


class Reader:
    """For one caller: a command at a time. Its connection is made when it is first used."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._connection: Connection | None = None

    async def block(self, *words: Word, wait: float) -> Any:
        """One command that may be sent twice, such as XREAD with BLOCK.

        Args:
            wait: seconds that it may wait at the server.

        Raises:
            Away, Refused.
        """
        for _ in range(2):
            reply = await self._ask(words, wait)
            if not isinstance(reply, Lost):
                break
        link = self._link
        if isinstance(reply, Lost):
            link.failed("connections end")
            raise Away("the connection was lost")
        if isinstance(reply, Refused):
            to = redirect(reply)
            if to is not None:
                self.close()
                link.servers.moved(to[1])
                raise Away("the keys have moved elsewhere")
            cause = away(reply)
            if cause is not None:
                link.down(f"{link.state.server} {cause}")
                raise Away(cause)
            raise reply
        return reply

    def close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    async def _ask(self, words: tuple[Word, ...], wait: float) -> Any:
        if not self._link.up:
            self.close()
            raise Away(self._link.state.cause)
        connection = self._connection
        if connection is None or not connection.usable or connection.waiting:
            self.close()  # an answer that nobody waits for any more is none of ours
            connection = await self._link.servers.open(lambda connection: None)
            self._connection = connection
        limit = asyncio.get_running_loop().time() + wait + LIMIT
        try:
            async with asyncio.timeout_at(limit):
                return await connection.ask(words, limit)
        except TimeoutError:
            self.close()
            self._link.failed("answers are overdue")
            raise Away("the answer is overdue") from None
