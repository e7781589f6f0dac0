"""One connection to Redis. Commands go out as they come; answers come back in the same order.

Nobody can cancel a command here: who asked may have gone, its answer is read all the same and
thrown away, so that none is ever taken for another's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import hiredis

from gateway.shared.address import Address
from gateway.shared.records import Refused

Word = bytes | str | int | float

_NOTHING = object()


class Lost(Exception):
    """The connection ended before the answer; whether the command was carried out is not known."""


class Unsent(Lost):
    """The command was not carried out: it has never gone out."""


class Connection(asyncio.Protocol):
    """Args:
        lost: called once when it has ended, whoever ended it.

    Attributes:
        address: where it leads.
        version: the server's, e.g. (7, 2); None when it does not say.
        primary: False when the server says that it copies another.
        usable: whether commands may be sent.
    """

    def __init__(
        self, address: Address, lost: Callable[[Connection], None] = lambda connection: None
    ) -> None:
        self.address = address
        self.version: tuple[int, ...] | None = None
        self.primary = True
        self.usable = False
        self.lost = lost
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader(replyError=Refused, notEnoughData=_NOTHING)
        self._asked: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._transport: asyncio.Transport | None = None

    @property
    def waiting(self) -> int:
        """Commands whose answers have not come."""
        return len(self._asked)

    def ask(self, words: tuple[Word, ...], limit: float) -> asyncio.Future[Any]:
        """Send a command.

        Args:
            limit: when to give the whole connection up if the answer has not come, by
                `time.monotonic`. `check` does that.

        Returns:
            What becomes the answer: bytes, int, list or None; `Refused` and `Lost` as values. May
            be cancelled.
        """
        answer: asyncio.Future[Any] = self._loop.create_future()
        transport = self._transport
        if transport is None or not self.usable or transport.is_closing():
            answer.set_result(Unsent())
            return answer
        data = hiredis.pack_command(words)  # type: ignore[arg-type]  # its stub wants one word
        self._asked.append((answer, limit))
        transport.write(data)
        return answer

    def check(self, now: float) -> None:
        """Give the connection up if an answer is overdue."""
        if self._asked and self._asked[0][1] <= now:
            self.abort()

    def retire(self) -> None:
        """Take no more commands, and close after the last answer."""
        self.usable = False
        if not self._asked:
            self.abort()

    def abort(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _NOTHING:
                answer, _ = self._asked.popleft()
                if not answer.done():
                    answer.set_result(reply)
        except (hiredis.ProtocolError, IndexError):  # not Redis's protocol, or answers to nothing
            self.abort()
            return
        if not self.usable and not self._asked:
            self.abort()

    def eof_received(self) -> None:
        self.usable = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._transport = None
        while self._asked:
            answer, _ = self._asked.popleft()
            if not answer.done():
                answer.set_result(Lost())
        self.lost(self)
