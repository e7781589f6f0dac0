"""API keys on the pages that the gateway answers itself."""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http.errors import RequestError
from gateway.http.keys import Keys, Unauthenticated

KEY = "prefixgate.key"
"""Where a request's scope has its key."""
OPEN = frozenset({"/live", "/ready", "/health"})
"""What load balancers and orchestrators ask, which have no key."""


class KeyGuard:
    """Middleware: nothing but `OPEN` answers without a key, where keys are needed. The admin API
    looks after itself.

    Args:
        refusal: makes an error an answer, given method and path.
    """

    def __init__(
        self, app: ASGIApp, keys: Keys, refusal: Callable[[str, str, RequestError], Response]
    ) -> None:
        self._app = app
        self._keys = keys
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._keys.enabled and not self._is_open(scope["path"]):
            try:
                scope[KEY] = self._keys.find(scope["headers"])
            except Unauthenticated as error:
                await self._refusal(scope["method"], scope["path"], error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        if path in OPEN or (path == "/metrics" and self._keys.settings.open_metrics):
            return True
        return path == "/admin" or path.startswith("/admin/")
