"""A client that leaves when it is told to, and writes down what it has seen."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import cast

import httptools

from loadtests.chaos.mix import Demand, Kind, Moment
from loadtests.chaos.reading import Reading

PATIENCE = 30.0
"""Seconds. No request may be without an end for so long."""
_HOST = "127.0.0.1"


class End(StrEnum):
    """How an answer ended, as its client saw it."""

    WHOLE = "whole"
    """By its own framing."""
    BROKEN = "broken"
    """With the connection, inside the answer."""
    NOTHING = "nothing"
    """With the connection, before any of it."""
    NEVER = "never"
    """Not within the client's patience."""
    LEFT = "left"
    """The client did not wait for it."""


@dataclass(slots=True)
class Seen:
    """One request, as its client saw it. Times are seconds of `time.monotonic`.

    Attributes:
        id: that the gateway gave it; "" when no head came.
        status: 0 when no head came.
        ended_by: how.
    """

    demand: Demand
    reading: Reading
    sent: float
    id: str = ""
    status: int = 0
    ended: float = 0.0
    ended_by: End = End.NEVER

    @property
    def left_after_done(self) -> bool:
        return self.ended_by is End.LEFT and self.reading.done


class Connection(asyncio.Protocol):
    """Carries one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[End] | None = None
        self._seen: Seen | None = None
        self._body = bytearray()
        self._streams = False
        self.usable = False

    async def exchange(self, demand: Demand) -> Seen:
        now = self._loop.time()
        seen = self._seen = Seen(demand, Reading(demand.name), now)
        self._body = bytearray()
        self._waiter = self._loop.create_future()
        try:
            async with asyncio.timeout(PATIENCE):
                await self._send(demand)
                seen.ended_by = await self._waiter
        except TimeoutError:
            self._leave(reset=True)
        seen.ended = self._loop.time()
        self._seen = self._waiter = None
        return seen

    async def _send(self, demand: Demand) -> None:
        head = (
            f"POST {demand.path} HTTP/1.1\r\nhost: chaos\r\ncontent-type: application/json\r\n"
            f"{demand.headers}content-length: {len(demand.body)}\r\n\r\n"
        ).encode()
        leave = demand.leave
        if leave is not None and leave.moment is Moment.BODY:
            self._transport.write(head + demand.body[: int(len(demand.body) * leave.after)])
            await asyncio.sleep(leave.after * 0.01)
            self._depart()
            return
        self._transport.write(head + demand.body)
        if leave is not None and leave.moment is Moment.WAIT:
            self._loop.call_later(leave.after, self._depart_from, self._seen)

    def _depart_from(self, seen: Seen | None) -> None:
        if seen is self._seen:
            self._depart()

    def _depart(self) -> None:
        """The client leaves now, unless it has had its answer."""
        seen, waiter = self._seen, self._waiter
        if seen is None or waiter is None or waiter.done():
            return
        leave = seen.demand.leave
        assert leave is not None
        waiter.set_result(End.LEFT)
        self._leave(leave.reset)

    def _leave(self, reset: bool) -> None:
        self.usable = False
        if reset:
            linger = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        else:
            self._transport.close()

    def close(self) -> None:
        self.usable = False
        self._transport.close()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._socket: socket.socket = transport.get_extra_info("socket")
        self.usable = True

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self._seen is not None:
                self._seen.reading.flaw = f"not HTTP: {error}"
            self._end(End.BROKEN)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        seen = self._seen
        self._end(End.BROKEN if seen is not None and seen.status else End.NOTHING)

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._seen is not None and name.lower() == b"x-request-id":
            self._seen.id = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if self._seen is not None:
            self._seen.status = self._parser.get_status_code()
            self._streams = self._seen.status == 200 and self._seen.demand.kind is Kind.STREAM

    def on_body(self, body: bytes) -> None:
        seen = self._seen
        if seen is None:
            return
        if not self._streams:
            self._body += body
            return
        reading = seen.reading
        reading.stream(body)
        leave = seen.demand.leave
        if leave is not None and (
            (leave.moment is Moment.TOKEN and reading.tokens >= leave.after)
            or (leave.moment is Moment.DONE and reading.done)
        ):
            self._depart()

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        seen, waiter = self._seen, self._waiter
        if seen is None or waiter is None or waiter.done():
            return
        if not self._streams:
            seen.reading.whole(bytes(self._body))
        self._end(End.WHOLE)

    def _end(self, how: End) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(how)


class Client:
    """Uses a connection again when its last answer was whole.

    Args:
        port: of the gateway.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._idle: list[Connection] = []

    async def send(self, demand: Demand) -> Seen:
        """
        Raises:
            OSError: the gateway takes no connection.
        """
        connection = self._idle.pop() if self._idle else None
        if connection is None or not connection.usable:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(
                lambda: Connection(loop), _HOST, self._port
            )
        seen = await connection.exchange(demand)
        if connection.usable:
            self._idle.append(connection)
        return seen

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
