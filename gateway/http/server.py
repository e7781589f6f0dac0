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


class GatewayProtocol(HttpToolsProtocol):
    active: DirectClient | None = None

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        client = self.active = DirectClient(cycle)
        cycle.scope["extensions"] = {EXTENSION: client}  # type: ignore[dict-item]  # not a dict, for speed
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        # A reset leaves uvicorn's keep-alive timer running, which holds the whole request.
        self._unset_keepalive_if_required()
        if self.active is not None:
            self.active.leave()
            self.active = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.active is not None:
            self.active.pause_writing()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.active is not None:
            self.active.resume_writing()
