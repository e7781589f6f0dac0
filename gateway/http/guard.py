"""What bounds a client's connection, whichever parser reads it.

A connection is one of so many; a head that has begun comes in time; a client takes its answer. A
connection that must end is ended so that the client can read why: our side is closed, and what
the client still sends is thrown away for a moment. A connection closed with bytes unread is reset,
which may destroy the answer on its way.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl

from gateway.config import Server
from gateway.descriptors import OWN
from gateway.http.client import STATUS_LINES
from gateway.http.dialects.registry import dialect_for
from gateway.http.errors import BadHead, Overloaded, RequestError
from gateway.http.heads import too_slow

LINGER = 2.0
"""Seconds for which a client may go on sending after the last answer."""

_LOOKS = 4
"""How often it is looked, while `write_timeout` passes, whether a client takes something."""


def most_connections(limits: Server) -> int:
    """Client connections at once. Each may need a second descriptor, for a backend."""
    if limits.max_connections is not None:
        return limits.max_connections
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(OWN, soft - OWN) // 2


def without_body(answer: bytes, method: str) -> bytes:
    """The answer as a request with this method may get it."""
    return answer.partition(b"{")[0] if method == "HEAD" else answer


def _full() -> Overloaded:
    return Overloaded(
        "There are too many connections.", status=503, code="too_many_connections", retry_after=1
    )


class Guard(asyncio.Protocol):
    """Mixed into uvicorn's protocols, in front of them.

    Args:
        limits: as they are now; a connection keeps those that it began with.
        note: told the code of each refusal that the application does not hear of.

    Attributes:
        deaf: nothing that the client sends is read any more.
    """

    # uvicorn's
    connections: set[Any]
    cycle: Any
    flow: FlowControl
    loop: asyncio.AbstractEventLoop
    timeout_keep_alive: Any
    timeout_keep_alive_task: asyncio.TimerHandle | None
    transport: asyncio.Transport

    if TYPE_CHECKING:

        def timeout_keep_alive_handler(self) -> None: ...

    deaf = False
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _linger_timer: asyncio.TimerHandle | None = None

    def __init__(
        self,
        limits: Callable[[], Server],
        note: Callable[[str], None],
        config: uvicorn.Config,
        *args: Any,
        **options: Any,
    ) -> None:
        super().__init__(config, *args, **options)  # type: ignore[call-arg]  # uvicorn's
        self.limits = limits()
        self._note = note
        self.timeout_keep_alive = self.limits.keep_alive

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        excess = len(self.connections) - most_connections(self.limits)
        if excess > OWN // 2:
            self.deaf = True
            self._note(_full().code or "")
            self.transport.abort()  # those that read why still hold a descriptor each
            return
        if excess > 0:
            self.hang_up(self.last_words(_full(), ""))
            return
        # Before its first byte a connection is as idle as between two requests.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (
            self.timeout_keep_alive_task,  # it would hold the connection and its last request
            self._head_timer,
            self._stall_timer,
            self._linger_timer,
        ):
            if timer is not None:
                timer.cancel()
        self.timeout_keep_alive_task = self._head_timer = None
        self._stall_timer = self._linger_timer = None

    # heads

    def await_head(self) -> None:
        """A head has begun and is not all here."""
        if self._head_timer is None and not self.deaf:
            self._head_timer = self.loop.call_later(self.limits.head_timeout, self._head_late)

    def head_came(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self.flow.read_paused:
            self.await_head()  # it is we who do not read
        else:
            self.refuse(too_slow(self.limits))

    def refuse(self, error: BadHead) -> None:
        """Answer what cannot be read, after the answers that are due before, and hang up."""
        raise NotImplementedError

    def last_words(self, error: RequestError, path: str) -> bytes:
        """A whole answer, after which the connection is closed."""
        self._note(error.code or "")
        body = dialect_for("POST", path).error(
            error.status, str(error), type=error.type, code=error.code, param=error.param
        )
        later = error.retry_after
        lines = (
            STATUS_LINES[error.status],
            b"content-type: application/json\r\nconnection: close\r\n",
            b"" if later is None else b"retry-after: %d\r\n" % later,
            b"content-length: %d\r\n\r\n" % len(body),
            body,
        )
        return b"".join(lines)

    def hang_up(self, words: bytes) -> None:
        """Say this last, and end the connection."""
        self.deaf = True
        self.head_came()
        transport = self.transport
        if transport.is_closing():
            return
        transport.write(words)
        self.linger()

    def linger(self) -> None:
        """Close our side; the client's too, in a moment."""
        self.deaf = True
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        transport = self.transport
        if self._linger_timer is not None or transport.is_closing():
            return
        self.flow.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
            self._linger_timer = self.loop.call_later(LINGER, transport.abort)
        else:
            transport.close()
            self.watch_writes()

    # answers that nobody takes

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch_writes()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def watch_writes(self) -> None:
        """End the connection when nothing of what is to be written goes out for too long."""
        if self._stall_timer is None:
            self._look_again(self.transport.get_write_buffer_size(), 0)

    def _look_again(self, left: int, idle: int) -> None:
        self._stall_timer = self.loop.call_later(
            self.limits.write_timeout / _LOOKS, self._look_at_writes, left, idle
        )

    def _look_at_writes(self, before: int, idle: int) -> None:
        self._stall_timer = None
        left = self.transport.get_write_buffer_size()
        idle = 0 if left < before else idle + 1
        if idle == _LOOKS:
            self.transport.abort()
        elif left and (self.flow.write_paused or self.transport.is_closing()):
            self._look_again(left, idle)
