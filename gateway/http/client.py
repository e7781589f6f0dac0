"""The client's side of a request: where its answer is written, and word of its leaving.

`DirectClient` writes to the transport under uvicorn's cycle: no task switch, no ASGI message, no
copy per chunk. `AsgiClient` does the same through plain ASGI `send` and `receive`, for servers
other than ours.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

EXTENSION = "prefixgate.client"


class ClientGone(Exception):
    """The client left before its answer began."""


class Source(Protocol):
    """Where an answer's bytes come from, as far as back-pressure is concerned."""

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Client(Protocol):
    """One request's answer, written in order: `start`, `write`..., `end`.

    Attributes:
        gone: the client left before its answer was complete.
        started: the head of an answer has been written.
        on_gone: called once when the client leaves; set by whoever must know.
        source: paused while the client reads too slowly.
    """

    gone: bool
    started: bool
    on_gone: Callable[[], None] | None
    source: Source | None

    def start(self, status: int, headers: Headers, length: int | None, body: bytes = b"") -> None:
        """Write the head, and the beginning of the body in the same breath.

        Args:
            headers: without framing and connection headers.
            length: the body's size, None when it is not known yet.
        """

    def write(self, data: bytes) -> None: ...
    def end(self) -> None: ...

    # After the client has gone all of these do nothing.

    def abort(self) -> None:
        """Close the connection in the middle of the answer, so that it cannot look complete."""

    def take_body(self) -> bytes | None:
        """The request's body if all of it has arrived; None: `receive` must be asked for it."""

    def watch(self) -> None:
        """Notice a leaving client from now on; called when the body has been read."""

    def close_after(self) -> None:
        """Close the connection after this answer."""

    async def drained(self) -> None:
        """Wait until everything has been handed to the server."""


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


class Cycle(Protocol):
    """What `DirectClient` needs of uvicorn's request/response cycle."""

    scope: Any
    transport: asyncio.Transport
    flow: FlowControl
    body: bytearray
    keep_alive: bool
    more_body: bool
    response_started: bool
    response_complete: bool
    disconnected: bool
    waiting_for_100_continue: bool
    message_event: asyncio.Event
    on_response: Callable[[], Any]


class DirectClient:
    """Writes an answer to the client's transport in place of the cycle's ASGI `send`."""

    __slots__ = ("_chunked", "_cycle", "_left", "_transport", "gone", "on_gone", "source")

    def __init__(self, cycle: Cycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._chunked = False
        self._left: int | None = None
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.source: Source | None = None

    @property
    def started(self) -> bool:
        return self._cycle.response_started

    @started.setter
    def started(self, value: bool) -> None:
        self._cycle.response_started = value

    def start(self, status: int, headers: Headers, length: int | None, body: bytes = b"") -> None:
        cycle = self._cycle
        if self.gone:
            return
        cycle.response_started = True
        cycle.waiting_for_100_continue = False
        scope = cycle.scope
        parts = [STATUS_LINES[status]]
        for name, value in headers:
            parts += (name, b": ", value, b"\r\n")
        if status in (204, 304) or scope["method"] == "HEAD":
            self._left = 0
            if length is not None and status != 204:
                parts.append(b"content-length: %d\r\n" % length)
        elif length is not None:
            self._left = length
            parts.append(b"content-length: %d\r\n" % length)
        elif scope["http_version"] == "1.1":
            self._chunked = True
            parts.append(b"transfer-encoding: chunked\r\n")
        else:
            cycle.keep_alive = False
        if not cycle.keep_alive:
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        if body:
            if self._chunked:
                parts += (b"%x\r\n" % len(body), body, b"\r\n")
            else:
                parts.append(self._within(body))
        self._transport.write(b"".join(parts))

    def write(self, data: bytes) -> None:
        if self.gone:
            return
        if self._chunked:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._transport.write(self._within(data))

    def _within(self, data: bytes) -> bytes:
        """`data`, but never more of it than the head promised."""
        if self._left is not None:
            data = data[: self._left]
            self._left -= len(data)
        return data

    def end(self) -> None:
        if self.gone:
            self.source = None
            return
        if self._left:
            self.abort()
            return
        if self._chunked:
            self._transport.write(b"0\r\n\r\n")
        self._complete()
        cycle = self._cycle
        if not cycle.keep_alive and not cycle.more_body:
            self._transport.close()
        cycle.on_response()

    def abort(self) -> None:
        self._complete()
        if not self.gone:
            # close, not abort: what was written before still goes out
            self._transport.close()
            self._cycle.on_response()

    def _complete(self) -> None:
        self.source = None
        self._cycle.response_complete = True
        self._cycle.message_event.set()

    def take_body(self) -> bytes | None:
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def watch(self) -> None:
        # A body over the high-water mark leaves reading paused, and then nobody sees the FIN.
        self._cycle.flow.resume_reading()

    def close_after(self) -> None:
        self._cycle.keep_alive = False

    async def drained(self) -> None:
        return

    # told by the server protocol

    def leave(self) -> None:
        if self.gone or self._cycle.response_complete:
            return
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()

    def pause_writing(self) -> None:
        if self.source is not None:
            self.source.pause_reading()

    def resume_writing(self) -> None:
        if self.source is not None:
            self.source.resume_reading()


HIGH_WATER = 256 * 1024


class AsgiClient:
    """The same through ASGI messages. `watch` must run once the request's body has been read."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._waiting: deque[Message | None] = deque()
        self._buffered = 0
        self._wake = asyncio.Event()
        self._paused = False
        self._close_after = False
        self._pump: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._finished = False
        self.gone = False
        self.started = False
        self.on_gone: Callable[[], None] | None = None
        self.source: Source | None = None

    def take_body(self) -> bytes | None:
        return None

    def close_after(self) -> None:
        self._close_after = True

    def watch(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._finished:
            self.gone = True
            self._wake.set()
            if self.on_gone is not None:
                self.on_gone()

    def start(self, status: int, headers: Headers, length: int | None, body: bytes = b"") -> None:
        self.started = True
        if length is not None:
            headers = [*headers, (b"content-length", b"%d" % length)]
        if self._close_after:
            headers = [*headers, (b"connection", b"close")]
        self._put({"type": "http.response.start", "status": status, "headers": headers})
        self._pump = asyncio.get_running_loop().create_task(self._run())
        if body:
            self.write(body)

    def write(self, data: bytes) -> None:
        self._buffered += len(data)
        self._put({"type": "http.response.body", "body": data, "more_body": True})
        if self._buffered > HIGH_WATER and not self._paused and self.source is not None:
            self._paused = True
            self.source.pause_reading()

    def end(self) -> None:
        self._finished = True
        self._put({"type": "http.response.body", "body": b"", "more_body": False})
        self._put(None)

    def abort(self) -> None:
        # ASGI has no word for it: a body that ends early makes the server close the connection
        self._finished = True
        self._put(None)

    def _put(self, message: Message | None) -> None:
        self._waiting.append(message)
        self._wake.set()

    async def _run(self) -> None:
        while not self.gone:
            while self._waiting:
                message = self._waiting.popleft()
                if message is None:
                    return
                await self._send(message)
                self._buffered -= len(message.get("body", b""))
                if self._paused and self._buffered < HIGH_WATER // 4 and self.source is not None:
                    self._paused = False
                    self.source.resume_reading()
            self._wake.clear()
            if not self._waiting and not self.gone:  # it may have left while something was sent
                await self._wake.wait()

    async def drained(self) -> None:
        if self._pump is not None:
            await self._pump
        if self._watcher is not None:
            self._watcher.cancel()
