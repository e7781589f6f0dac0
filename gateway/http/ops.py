"""Routes that the gateway answers itself, outside the proxied path: health, metrics, models."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.fleet.fleet import Fleet
from gateway.fleet.page import INSTANCE
from gateway.http.client import Message, Scope, Send
from gateway.http.dialects.registry import dialect_for
from gateway.http.errors import RequestError, UnknownModel
from gateway.http.headers import is_id
from gateway.http.keyguard import KEY
from gateway.scheduling.pools import Pools
from gateway.telemetry.collector import CONTENT_TYPE

PATHS = frozenset({"/live", "/ready", "/health", "/metrics", "/v1/models", "/admin"})


def is_control_path(path: str) -> bool:
    """Whether a path belongs to the gateway itself and is never proxied.

    So does a target that is no path (CONNECT's authority; with h11 also the absolute form): it
    means something to a forward proxy, and nothing below a backend's URL.
    """
    return path in PATHS or path.startswith(("/admin/", "/v1/models/")) or not path.startswith("/")


_UNPAIRED = "no prefill engine is there for decode engines that need one"


class Shared(Protocol):
    """What replicas have in common, as `/ready` shows it."""

    @property
    def caught_up(self) -> bool:
        """Whether this replica knows enough of it to serve as well as the others."""

    def view(self) -> object:
        """How it stands, as plain data."""


class Ops:
    """Args:
    page: the metrics, as text; raises ConnectionError when they cannot be had.
    stopping: whether the gateway is shutting down.
    instance: names this process on its pages, so that it knows itself among its backends.
    shared: what is shared with other replicas; None where nothing is.
    """

    def __init__(
        self,
        fleet: Fleet,
        pools: Pools,
        page: Callable[[], Awaitable[bytes]],
        stopping: Callable[[], bool],
        instance: str,
        shared: Shared | None = None,
    ) -> None:
        self._fleet = fleet
        self._pools = pools
        self._page = page
        self._stopping = stopping
        self._shared = shared
        self._headers = {INSTANCE: instance}

    def routes(self) -> list[Route]:
        return [
            Route("/live", self.live),
            Route("/ready", self.ready),
            Route("/health", self.ready),
            Route("/metrics", self.metrics),
            Route("/v1/models", self.models),
            Route("/v1/models/{model:path}", self.model),
        ]

    async def live(self, request: Request) -> Response:
        """The process runs and its event loop turns."""
        return self._json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Requests can be served now; the reasons why not, otherwise."""
        states = [str(backend.state) for backend in self._fleet]
        body: dict[str, object] = {
            "status": "ok",
            "backends": {state: states.count(state) for state in sorted(set(states))},
            "models": sorted(self._served()),
        }
        shared = self._shared
        if shared is not None:
            body["shared"] = shared.view()
        if self._stopping():
            body["status"] = "shutting down"
        elif not body["models"]:
            body["status"] = "no backend can serve a model" if states else "no backends"
            reasons = self._fleet.why_unready()
            if self._fleet.models():
                reasons = [_UNPAIRED, *reasons]
            body["reasons"] = reasons
        elif shared is not None and not shared.caught_up:
            body["status"] = "learning what the other replicas know"
        return self._json(body, 200 if body["status"] == "ok" else 503)

    async def metrics(self, request: Request) -> Response:
        try:
            body = await self._page()
        except ConnectionError as error:
            return Response(f"{error}\n", 503, media_type="text/plain")
        return Response(body, headers={"content-type": CONTENT_TYPE})

    async def models(self, request: Request) -> Response:
        """The union over usable backends, in OpenAI's list shape."""
        entries = [_entry(model) for model in sorted(self._models(request))]
        return self._json({"object": "list", "data": entries})

    def _served(self) -> set[str]:
        """Those that can be served now: there may be no prefill engine for a decode engine that
        needs one."""
        return {
            model
            for model in self._fleet.models()
            if (pool := self._pools.get(model)) is not None and pool.members
        }

    def _models(self, request: Request) -> set[str]:
        """Those that can be served now, to whom a request is from."""
        models = self._served()
        key = request.scope.get(KEY)
        return models if key is None else {model for model in models if key.allows(model)}

    async def model(self, request: Request) -> Response:
        model = request.path_params["model"]
        if model not in self._models(request):
            return refusal("GET", request.url.path, UnknownModel(model))
        return self._json(_entry(model))

    def _json(self, body: object, status: int = 200) -> Response:
        content = msgspec.json.encode(body)
        return Response(content, status, self._headers, media_type="application/json")


def identified(scope: Scope, id: str, send: Send) -> Send:
    """`send` with the client's own id of its request added to the answer, or `id` without one."""
    named = next((v for n, v in scope["headers"] if n == b"x-request-id" and is_id(v)), b"")

    async def send_with_id(message: Message) -> None:
        if message["type"] == "http.response.start":
            header = (b"x-request-id", named or id.encode())
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return send_with_id


def refusal(method: str, path: str, error: RequestError) -> Response:
    """An error in the dialect that `path` belongs to."""
    body = dialect_for(method, path).error(
        error.status, str(error), type=error.type, code=error.code, param=error.param
    )
    answer = Response(body, error.status, media_type="application/json")
    answer.raw_headers += error.headers
    return answer


def _entry(model: str) -> dict[str, object]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "prefixgate"}
