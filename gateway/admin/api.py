"""The admin API as an ASGI application."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.admin.auth import Auth, require
from gateway.admin.control import Control
from gateway.admin.errors import HANDLERS
from gateway.admin.openapi import Operation
from gateway.admin.operations import AdminApi
from gateway.config import Admin, ConfigError, convert

MAX_BODY = 64 * 1024 * 1024
"""As large as the requests that are to be explained."""
SHARED = "x-prefixgate-shared"
"""Of answers to what may change something, with Redis: whether all that was changed through this
replica is there for the others. What is not yet holds here, and is shared when Redis is back."""


class Others(Protocol):
    """The other workers of a gateway that is several processes."""

    async def answers(self, operation: str, path: Mapping[str, str]) -> list[bytes]:
        """What they answer to a read, as JSON; those left out that have no answer.

        Args:
            operation: its id.
        """


def admin_app(
    control: Control, settings: Admin, others: Callable[[], Others | None] = lambda: None
) -> Auth:
    """The admin API, to be mounted at `operations.MOUNT`.

    Args:
        others: whose answers belong to this worker's; None for a gateway that is one process.

    Raises:
        ConfigError: a token is empty or cannot be read.
    """
    operations = AdminApi(control).operations()
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    routes = [_route(path, methods, control, others) for path, methods in by_path.items()]
    app = Starlette(routes=routes, exception_handlers=HANDLERS)
    app.router.redirect_slashes = False
    return Auth(app, settings)


def _route(
    path: str,
    methods: Mapping[str, Operation],
    control: Control,
    others: Callable[[], Others | None],
) -> Route:
    async def endpoint(request: Request) -> Response:
        operation = methods["GET" if request.method == "HEAD" else request.method]
        require(request, operation.needs)
        body = None
        if operation.body is not None:
            body = await _body(request, operation)
        handled = operation.handler(request.path_params, body)
        status, answer = handled if isinstance(handled, tuple) else await handled
        headers = {}
        if request.method != "GET" and control.shared is not None:
            headers[SHARED] = str(control.shared).lower()
        if answer is None:
            return Response(status_code=status, headers=headers)
        siblings = others()
        if operation.merge is not None and siblings is not None:
            decode = msgspec.json.Decoder(operation.answers[status]).decode
            theirs = await siblings.answers(operation.id, request.path_params)
            answer = operation.merge([answer, *map(decode, theirs)])
        # States and settings are true now, not later.
        headers["cache-control"] = "no-store"
        return Response(msgspec.json.encode(answer), status, headers, "application/json")

    return Route(path, endpoint, methods=list(methods))


async def _body(request: Request, operation: Operation) -> Any:
    """The body, checked, and converted unless it is a part of something.

    Raises:
        ConfigError: it is not JSON, or not what the operation takes.
    """
    parts = bytearray()
    async for part in request.stream():
        parts += part
        if len(parts) > MAX_BODY:
            raise HTTPException(413, f"The body is larger than {MAX_BODY} bytes.")
    if operation.body_optional and not parts:
        parts += b"{}"
    try:
        data = msgspec.json.decode(parts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"body: not valid JSON: {error}") from None
    body = convert(data, operation.body, "body")
    return data if operation.partial else body
