"""uvicorn's httptools protocol, with the client's transport handed to the application.

The application finds a `DirectClient` under `scope["extensions"][EXTENSION]` and may write its
whole answer through it instead of `send`. The protocol tells that client when its peer leaves
and when its socket is full. Everything else, parsing, pipelining, keep-alive and shutdown,
stays uvicorn's. What this relies on of uvicorn is pinned by `tests/http/test_server.py`.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.http.client import EXTENSION, DirectClient

_REASON = (
    b'{"error":{"message":"Upgrade is not supported: send the request without it.",'
    b'"type":"invalid_request_error","param":null,"code":"upgrade_not_supported"}}'
)
_NO_UPGRADE = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(_REASON), _REASON)
)


class GatewayProtocol(HttpToolsProtocol):
    """Attributes:
    active: the client of the request that is being answered.
    """

    active: DirectClient | None = None
    _idle_since = 0.0

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        client = self.active = DirectClient(cycle)
        cycle.scope["extensions"] = {EXTENSION: client}  # type: ignore[dict-item]  # not a dict, for speed
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            # Left running, it would hold the connection and its last request in memory.
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        if self.active is not None:
            self.active.leave()
            self.active = None

    # httptools stops parsing where a protocol would be switched, and takes the request's body for
    # the next request: anybody could smuggle one in. Nothing is switched here, so such requests
    # are refused, and the connection ends.

    def _should_upgrade(self) -> bool:
        return True

    def handle_websocket_upgrade(self) -> None:
        self.transport.write(_NO_UPGRADE)
        self.transport.close()

    # One keep-alive timer a connection, which looks at the clock when it fires, in place of one
    # that is made and cancelled for every request.

    def _unset_keepalive_if_required(self) -> None:
        pass

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        armed, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        if armed is None or self.pipeline or self.transport.is_closing():
            super().on_response_complete()
            armed = armed or self.timeout_keep_alive_task
        else:
            self.server_state.total_requests += 1
            self.flow.resume_reading()
        self.timeout_keep_alive_task = armed

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if not self.cycle.response_complete:
            return  # busy: armed again after the answer
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            super().timeout_keep_alive_handler()
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
