"""uvicorn's protocols, bounded, and with the client's transport handed to the application.

With httptools the application finds a `DirectClient` under `scope["extensions"][EXTENSION]` and may
write its whole answer through it instead of `send`. The protocol tells that client when its peer
leaves and when its socket is full. Everything else, parsing, pipelining, keep-alive and shutdown,
stays uvicorn's. What this relies on of uvicorn is pinned by `tests/http/test_server.py`.
"""

from __future__ import annotations

import sys
from typing import Any

import h11
import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http.client import EXTENSION, DirectClient
from gateway.http.errors import BadHead
from gateway.http.guard import Guard, without_body
from gateway.http.heads import MAX_PIPELINED, check_head, check_host, check_size, malformed, size_of


def _path(target: bytes) -> str:
    return target.partition(b"?")[0].decode("latin-1")


class GatewayProtocol(Guard, HttpToolsProtocol):
    """Attributes:
    active: the client of the request that is being answered.
    """

    active: DirectClient | None = None
    _idle_since = 0.0
    _in_head = False
    _read = 0
    """Bytes of the read that is being parsed."""
    _unfinished = 0
    """Bytes of the reads since then that brought nothing but more of a head, or of what is around
    a body's chunks: in what a parser collects before it shows any of it."""
    _last_words: bytes | None = None
    """To be said after all answers that are due."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        client = self.active = DirectClient(cycle)
        cycle.scope["extensions"] = {EXTENSION: client}  # type: ignore[dict-item]  # not a dict, for speed
        super()._start_asgi_task(cycle, app)

    def connection_made(self, transport: Any) -> None:
        self._idle_since = self.loop.time()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.active is not None:
            self.active.leave()
            self.active = None

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        self._read = len(data)
        cycle = self.cycle
        body = len(cycle.body) if cycle is not None and cycle.more_body else None
        was_in_head = self._in_head
        try:
            self.parser.feed_data(data)
            if self._in_head:
                self._unfinished = self._unfinished + len(data) if was_in_head else 0
                check_size(self._unfinished, self.limits)
                self.await_head()
            elif body is not None and cycle is self.cycle:
                idle = cycle.more_body and len(cycle.body) == body
                self._unfinished = self._unfinished + len(data) if idle else 0
                check_size(self._unfinished, self.limits)
        except BadHead as error:
            self.refuse(error)
        except httptools.HttpParserUpgrade:
            self.refuse(_no_upgrade())
        except httptools.HttpParserError as error:
            reason = error.__context__
            self.refuse(reason if isinstance(reason, BadHead) else malformed())

    # parser callbacks

    def on_message_begin(self) -> None:
        self._in_head = True
        self._unfinished = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, limits = self.parser, self.limits
        if self._head_timer is not None or self._read > limits.max_head:
            check_size(size_of(self.url, self.headers), limits)
        version = parser.get_http_version()
        given = check_head(parser.get_method(), self.url, version, self.headers, limits)
        self.expect_100_continue = given.get(b"expect", b"").lower() == b"100-continue"
        # httptools stops parsing where a protocol would be switched, and takes the request's body
        # for the next request: anybody could smuggle one in. Nothing is switched here, so such
        # requests are refused, and the connection ends.
        if parser.should_upgrade():
            raise _no_upgrade()
        if len(self.pipeline) >= MAX_PIPELINED:
            raise BadHead(
                f"More than {MAX_PIPELINED} requests wait for answers on this connection.",
                code="too_many_pipelined",
            )
        super().on_headers_complete()
        self.headers = []  # a trailer must not pass for a header
        self._in_head = False
        if self._head_timer is not None:
            self.head_came()

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.body:
            if type(cycle.body) is bytes:
                cycle.body = bytearray(cycle.body)
            super().on_body(body)
        elif not cycle.response_complete:
            # Nearly always all of it, which need not be copied, here and again when it is read.
            cycle.body = body
            if len(body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def refuse(self, error: BadHead) -> None:
        cycle = self.cycle
        words = self.last_words(error, _path(self.url) if cycle or self._in_head else "")
        if cycle is None or cycle.response_complete:
            self.hang_up(words)
        elif self._in_head or not cycle.more_body:
            self.deaf, self._last_words = True, words
        elif self.pipeline:
            # It is the body of a request that waits for its turn.
            self.pipeline.popleft()
            self.deaf, self._last_words = True, words
        else:
            self._leave()
            if cycle.response_started:
                self.transport.close()
            else:
                self.hang_up(without_body(words, cycle.scope["method"]))

    def _leave(self) -> None:
        """The request whose body breaks off is over for the application."""
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        if self.active is not None:
            self.active.leave()

    # One keep-alive timer a connection, which looks at the clock when it fires, in place of one
    # that is made and cancelled for every request.

    def _unset_keepalive_if_required(self) -> None:
        pass

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        if self._last_words is not None and not self.pipeline:
            self.hang_up(self._last_words)
            return
        cycle = self.cycle
        if cycle.more_body and not cycle.keep_alive and not self.pipeline:
            # Refused with its body unread: what is still on its way must not reset the connection.
            self.linger()
            return
        armed, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        if armed is None or self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            armed = armed or self.timeout_keep_alive_task
            if self.transport.is_closing():
                self.watch_writes()
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()
        self.timeout_keep_alive_task = armed

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._in_head or (self.cycle is not None and not self.cycle.response_complete):
            return  # busy: armed again after the answer
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self.transport.close()
            self.watch_writes()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                left, self.timeout_keep_alive_handler
            )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.active is not None:
            self.active.pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.active is not None:
            self.active.resume_writing()


class StrictProtocol(Guard, H11Protocol):
    """The same bounds around h11. The application answers through ASGI."""

    _refusal: BadHead | None = None

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        super().data_received(data)
        self._look_for_head()

    def _look_for_head(self) -> None:
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            self.await_head()

    # uvicorn asks this of every request before it starts it, and ends there when told so.

    def _should_upgrade(self) -> bool:
        self.head_came()
        scope = self.scope
        target = scope["raw_path"] + b"?" + scope["query_string"]
        try:
            check_size(size_of(target, self.headers), self.limits)
            check_host(self.headers)
            check_head(
                scope["method"].encode(), target, scope["http_version"], self.headers, self.limits
            )
        except BadHead as error:
            self._refusal = error
            return True
        return False

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        assert self._refusal is not None
        self.refuse(self._refusal)

    def send_400_response(self, msg: str) -> None:
        error = malformed()
        reason = sys.exc_info()[1]
        if isinstance(reason, h11.RemoteProtocolError) and reason.error_status_hint == 431:
            error.status, error.code = 431, "head_too_large"
        self.refuse(error)

    def refuse(self, error: BadHead) -> None:
        cycle = self.cycle
        scope: Any = self.scope or {"path": ""}
        words = self.last_words(error, scope["path"])
        if cycle is None or cycle.response_complete:
            self.hang_up(words)
            return
        self.deaf = True
        if not cycle.more_body:
            return  # it came after the last request, and that one is still to be answered
        cycle.disconnected = True
        cycle.message_event.set()
        if cycle.response_started:
            self.transport.close()
        else:
            self.hang_up(without_body(words, scope["method"]))

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.watch_writes()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self.watch_writes()
        else:
            self._look_for_head()


def _no_upgrade() -> BadHead:
    return BadHead(
        "Upgrade is not supported: send the request without it.", code="upgrade_not_supported"
    )
