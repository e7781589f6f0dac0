"""Errors of the admin API: always JSON, always of one shape."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.control import UnknownKey
from gateway.admin.views import ErrorDetail, ErrorView
from gateway.config import ConfigError
from gateway.fleet.fleet import UnknownBackend

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "method_not_allowed_error",
    413: "request_too_large_error",
    500: "internal_error",
}


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    kind = TYPES.get(status, "invalid_request_error")
    body = ErrorView(error=ErrorDetail(message=message, type=kind, param=param))
    return Response(msgspec.json.encode(body), status, headers, "application/json")


async def config_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ConfigError)
    return error_response(400, str(error), param=error.field)


async def unknown_backend(request: Request, error: Exception) -> Response:
    return error_response(404, str(error), param="backend")


async def unknown_key(request: Request, error: Exception) -> Response:
    return error_response(404, str(error), param="name")


async def http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = error.detail
    if error.status_code == 404:
        message = f"{request.url.path} is no page of the admin API. /admin/openapi.json lists them."
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"{request.method} is not allowed on {request.url.path}, only {allowed}."
    return error_response(error.status_code, message, headers=error.headers)


async def internal_error(request: Request, error: Exception) -> Response:
    return error_response(500, "The gateway failed on this request; its log says more.")


HANDLERS = {
    ConfigError: config_error,
    UnknownBackend: unknown_backend,
    UnknownKey: unknown_key,
    HTTPException: http_error,
    Exception: internal_error,
}
