"""Connections to one backend: HTTP/1.1 with keep-alive, pushed into a sink as bytes arrive.

httptools parses; this module frames nothing itself and buffers nothing beyond one read. A
connection carries one exchange at a time. What becomes of the exchange is told to its `Sink`,
in this order: `on_head`, any number of `on_body`, then one of `on_end` or `on_failure`; after
`abort` the sink hears nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections import deque
from enum import StrEnum
from math import inf
from typing import Protocol, cast

import httptools

from gateway.fleet.access import OPEN, Access
from gateway.fleet.time_limits import NO_TIME_LIMITS, TimeLimits
from gateway.types import Clock

logger = logging.getLogger("prefixgate.upstream")

Headers = list[tuple[bytes, bytes]]

IDLE_SECONDS = 4.0
"""vLLM, SGLang and uvicorn close idle connections after 5 s; ours must be gone before."""
MAX_HEAD = 256 * 1024
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors of a process, or a machine, that can open no more connections."""
TICK = 0.25
"""How often limits are looked at. A limit strikes at most this much late."""
DIAL_STEPS = 4
"""In how many steps the limit of dialling is waited for."""


class FailureKind(StrEnum):
    """What went wrong between the gateway and a backend."""

    CONNECT = "connect"
    CONNECT_TIMEOUT = "connect_timeout"
    RESET = "reset"
    """The connection ended before the first byte of the answer."""
    INCOMPLETE = "incomplete"
    """The connection ended inside the answer."""
    PROTOCOL = "protocol"
    """What came back is not HTTP/1.1."""
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    """The answer took longer than it may from beginning to end."""
    HUNG = "hung"
    """The backend was put out by its probes and has sent nothing on any connection meanwhile."""


class UpstreamFailure(Exception):
    """An exchange with a backend failed.

    Attributes:
        kind: what went wrong.
    """

    def __init__(self, kind: FailureKind, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else str(kind))
        self.kind = kind


class OutOfDescriptors(Exception):
    """A connection could not even be tried, which is no backend's fault."""


class Sink(Protocol):
    """Where an exchange's answer goes. Called from the event loop; must not block."""

    def on_head(self, status: int, headers: Headers, first: bytes) -> None:
        """The final answer's head; informational (1xx) answers are not passed on.

        Args:
            headers: names in lower case.
            first: what came of the body in the same read, so that both can go on together.
        """

    def on_body(self, data: bytes) -> None: ...
    def on_end(self, *, framed: bool) -> None:
        """Args:
        framed: the answer itself said where it ends; else the connection's end was its end.
        """

    def on_failure(self, failure: UpstreamFailure) -> None: ...


class Connection(asyncio.Protocol):
    """One connection, owned by an `Upstream`; lent to one exchange at a time."""

    __slots__ = (
        "_complete",
        "_head",
        "_head_bytes",
        "_head_only",
        "_headers",
        "_hung_up",
        "_keep_alive",
        "_parser",
        "_pieces",
        "_reading",
        "_sink",
        "_until_close",
        "_upstream",
        "begun",
        "ends_at",
        "got_bytes",
        "head_seen",
        "idle_since",
        "limits",
        "quiet",
        "reused",
        "seen",
        "transport",
    )

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._parser = new_parser(self)
        self._sink: Sink | None = None
        self._headers: Headers = []
        self._head: tuple[int, Headers] | None = None
        self._pieces: list[bytes] = []
        self._complete = False
        self._until_close = False
        self._head_only = False
        self._head_bytes = 0
        self._reading = True
        self._hung_up = False
        self._keep_alive = False
        self.transport: asyncio.Transport = None  # type: ignore[assignment]  # set by connection_made
        self.reused = False
        self.got_bytes = False
        self.head_seen = False
        self.begun = False
        self.seen = False
        self.quiet = 0.0
        self.idle_since = 0.0
        self.limits = NO_TIME_LIMITS
        self.ends_at = inf

    def send(
        self,
        request: bytes,
        body: bytes,
        sink: Sink,
        limits: TimeLimits,
        *,
        ends_at: float = inf,
        head_only: bool = False,
    ) -> None:
        """Send a request; its answer goes to `sink`.

        Args:
            request: request line and headers, up to and including the blank line.
            limits: how long the answer may take to begin, and to go on.
            ends_at: when it must have ended, on the upstream's clock.
            head_only: the answer has no body whatever its headers say (HEAD).
        """
        self._sink = sink
        self.limits = limits
        self.ends_at = ends_at
        self._complete = self._until_close = self.got_bytes = self.head_seen = self.begun = False
        self._head_only = head_only
        self._head = None
        self._head_bytes = 0
        self.quiet = 0.0
        self._upstream.busy.add(self)
        if self.transport.is_closing():
            # Lost between dialling and now, when nobody could be told.
            asyncio.get_running_loop().call_soon(self._fail, FailureKind.RESET)
        elif len(body) <= 65_536:
            self.transport.write(request + body)
        else:
            self.transport.writelines((request, body))

    def abort(self) -> None:
        """Drop the exchange and the connection: the engine sees that nobody is listening."""
        self._sink = None
        self._upstream.busy.discard(self)
        self.transport.abort()

    def hang_up(self) -> bool:
        """Have the engine see that nobody is listening, and go on reading what it has sent by then.

        Returns:
            False where it has not even got all of the request: drop the exchange instead.
        """
        transport = self.transport
        if transport.get_write_buffer_size():
            return False
        self._hung_up = True
        sock = transport.get_extra_info("socket")
        if transport.is_closing():
            return True  # the sink is about to hear of that; the descriptor may be another's by now
        # What a transport offers for this leaves out TLS. The copy's end is not the connection's.
        # Where there can be no copy, the engine sees it when the exchange is dropped.
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(sock.fileno())) as copy:
            copy.shutdown(socket.SHUT_WR)
        return True

    def pause_reading(self) -> None:
        if self._reading and not self.transport.is_closing():
            self._reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self._reading and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports only look like asyncio's
        self.transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            # Bytes that nobody asked for: an answer to an aborted exchange, or a broken peer.
            self.transport.abort()
            return
        self.seen = self.got_bytes = True
        if not self.head_seen:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD:
                self._fail(FailureKind.PROTOCOL, "response head too large")
                return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(FailureKind.PROTOCOL, "unasked upgrade")
            return
        except httptools.HttpParserError:
            self._deliver()
            self._fail(FailureKind.PROTOCOL)
            return
        pieces = self._pieces
        try:
            if self._head is None and not self._complete:
                # The usual read in the middle of a stream: one chunk, one piece.
                if pieces:
                    self._pieces = []
                    sink.on_body(pieces[0] if len(pieces) == 1 else b"".join(pieces))
                return
            self._deliver()
            if self._complete and self._sink is sink:
                self._finish(keep=self._reusable())
        except Exception:
            # Whoever waits for the exchange must hear of its end, whatever went wrong.
            logger.exception("an answer could not be passed on")
            self._sink = sink
            self._fail(FailureKind.PROTOCOL, "the gateway failed on it")

    def eof_received(self) -> None:
        return None  # close the transport; connection_lost says what it means

    def connection_lost(self, exc: Exception | None) -> None:
        self._upstream.forget(self)
        sink = self._sink
        if sink is None:
            return
        if self._until_close and exc is None:
            self._finish(keep=False)
        elif self.head_seen:
            self._fail(FailureKind.INCOMPLETE)
        elif self.got_bytes:
            self._fail(FailureKind.INCOMPLETE, "inside the response head")
        else:
            self._fail(FailureKind.RESET)

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        headers, self._headers = self._headers, []
        if self._complete:
            # A second answer to one request: nothing on this connection can be trusted any more.
            self.transport.abort()
            return
        status = self._parser.get_status_code()
        if not 100 <= status <= 599:
            raise ValueError(f"status {status}")  # the parser makes it an error of its own
        if status < 200:
            return
        self.head_seen = True
        framed = self._head_only or status in (204, 304)
        if not framed:
            for name, value in headers:
                if name == b"content-length" or (
                    name == b"transfer-encoding" and value.lower().endswith(b"chunked")
                ):
                    framed = True
                    break
        self._until_close = not framed
        self._head = (status, headers)
        if self._head_only:
            self._complete = True

    def on_body(self, data: bytes) -> None:
        if self.head_seen and not self._complete:
            self.begun = True
            self._pieces.append(data)

    def on_message_complete(self) -> None:
        self._headers = []  # trailers: they end with the hop
        if self.head_seen:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()

    # ends

    def _deliver(self) -> None:
        """Give the sink what one read has brought."""
        sink, pieces = self._sink, self._pieces
        if sink is None:
            return
        if not pieces:
            data = b""
        else:
            self._pieces = []
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        head = self._head
        if head is not None:
            self._head = None
            sink.on_head(head[0], head[1], data)
        elif data:
            sink.on_body(data)

    def _reusable(self) -> bool:
        return (
            not self._head_only
            and not self._hung_up
            and self._reading
            and self._keep_alive
            and self.transport.get_write_buffer_size() == 0
        )

    def _finish(self, *, keep: bool) -> None:
        sink, self._sink = self._sink, None
        self._upstream.busy.discard(self)
        if keep:
            self._upstream.park(self)
        else:
            self.transport.close()
        if sink is not None:
            sink.on_end(framed=not self._until_close)

    def _fail(self, kind: FailureKind, detail: str = "") -> None:
        sink, self._sink = self._sink, None
        self._upstream.busy.discard(self)
        self.transport.abort()
        if sink is not None:
            sink.on_failure(UpstreamFailure(kind, detail))

    def give_up(self) -> None:
        """Fail the exchange, which has not begun: it will not."""
        self._fail(FailureKind.HUNG)

    def tick(self, now: float) -> None:
        """Apply the limits; called every `TICK` seconds while lent out."""
        if now >= self.ends_at:
            self._fail(FailureKind.TOTAL_TIMEOUT)
            return
        if self.seen or not self._reading:
            self.seen = False
            self.quiet = 0.0
            return
        self.quiet += TICK
        if self.begun:
            if self.quiet >= self.limits.idle:
                self._fail(FailureKind.IDLE_TIMEOUT)
        elif self.quiet >= self.limits.first_byte:
            self._fail(FailureKind.FIRST_BYTE_TIMEOUT)


def new_parser(connection: Connection) -> httptools.HttpResponseParser:
    parser = httptools.HttpResponseParser(connection)
    # Some servers say both Content-Length and chunked; chunked wins, as RFC 9112 has it.
    parser.set_dangerous_leniencies(lenient_chunked_length=True)
    return parser


class _Patience:
    """Has a timeout strike after so many seconds, of which a stall of ours counts as one step.

    A gateway that stood still cannot know whether the backend would have been in time.
    """

    def __init__(self, timeout: asyncio.Timeout, limit: float) -> None:
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()
        self._step = limit / DIAL_STEPS
        self._left = DIAL_STEPS
        self._timer = self._loop.call_later(self._step, self._count)

    def _count(self) -> None:
        self._left -= 1
        if self._left:
            self._timer = self._loop.call_later(self._step, self._count)
        else:
            self._timeout.reschedule(self._loop.time())

    def end(self) -> None:
        self._timer.cancel()


class Upstream:
    """The connections to one backend. No cap: limits are the scheduler's business.

    Args:
        host, port: where to connect.
        clock: seconds, monotonic.
        access: the backend's; can be replaced at any time, and holds for connections to come.

    Attributes:
        heard_at: when the last byte of any answer came, to within a `TICK`.
    """

    def __init__(
        self,
        host: str,
        port: int,
        clock: Clock,
        access: Access = OPEN,
    ) -> None:
        self.host = host
        self.port = port
        self.heard_at = clock()
        self.busy: set[Connection] = set()
        self._clock = clock
        self.access = access
        self._idle: deque[Connection] = deque()
        self._closed = False

    def idle(self) -> Connection | None:
        """The most recently used idle connection that is still fresh, if there is one."""
        oldest = self._clock() - IDLE_SECONDS
        idle = self._idle
        while idle:
            connection = idle.pop()
            if connection.idle_since > oldest and not connection.transport.is_closing():
                connection.reused = True
                return connection
            connection.transport.abort()
        return None

    async def dial(self, limit: float) -> Connection:
        """A new connection.

        Args:
            limit: seconds that it may take.

        Raises:
            UpstreamFailure: CONNECT, with its cause, or CONNECT_TIMEOUT.
            OutOfDescriptors: it could not be tried.
        """
        try:
            async with asyncio.timeout(None) as timeout:
                patience = _Patience(timeout, limit)
                try:
                    connection = await self._connect()
                finally:
                    patience.end()
        except TimeoutError:
            raise UpstreamFailure(FailureKind.CONNECT_TIMEOUT) from None
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                raise OutOfDescriptors from None
            raise UpstreamFailure(
                FailureKind.CONNECT, error.strerror or type(error).__name__
            ) from error
        return connection

    async def _connect(self) -> Connection:
        access = self.access
        loop = asyncio.get_running_loop()
        hosts = [self.host]
        if access.rule is not None:
            hosts = await access.rule.resolve(self.host, self.port)
        name = (access.server_name or self.host) if access.tls is not None else None
        failure = OSError("the name resolves to nothing")
        made: list[Connection] = []

        def make() -> Connection:
            made.append(Connection(self))
            return made[-1]

        for host in hosts:
            try:
                _, connection = await loop.create_connection(
                    make, host, self.port, ssl=access.tls, server_hostname=name
                )
            except OSError as error:
                failure = error
            except BaseException:
                # Cancelled just as it was made, a connection would be nobody's.
                for each in made:
                    if each.transport is not None:
                        each.transport.abort()
                raise
            else:
                return connection
        raise failure

    def park(self, connection: Connection) -> None:
        if self._closed:
            connection.transport.close()
            return
        connection.idle_since = self._clock()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        self.busy.discard(connection)
        if connection.idle_since:
            with contextlib.suppress(ValueError):  # it may be lent out again
                self._idle.remove(connection)

    def tick(self) -> None:
        """Apply limits to exchanges and drop connections that were idle too long."""
        now = self._clock()
        for connection in list(self.busy):
            if connection.seen:
                self.heard_at = now
            connection.tick(now)
        oldest = now - IDLE_SECONDS
        while self._idle and self._idle[0].idle_since <= oldest:
            self._idle.popleft().transport.abort()

    def give_up(self) -> None:
        """Fail the exchanges that have not begun."""
        for connection in list(self.busy):
            if not connection.begun:
                connection.give_up()

    def close(self) -> None:
        """Close idle connections now and the others when their exchange ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().transport.close()
