"""Who may use the admin API: holders of the token, or without one the machine's own users."""

from __future__ import annotations

import hmac
import ipaddress
import re
from http import HTTPStatus

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.errors import error_response
from gateway.config import ConfigError

FORWARDED = (
    b"cf-connecting-ip",
    b"forwarded",
    b"true-client-ip",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
)

_HOW = "Set admin.token in the settings and send it as a bearer token."


class Auth:
    """Middleware. Never believes a forwarded header; one can only keep a request out.

    Args:
        token: the bearer token; None opens the API to loopback peers and to nobody else.

    Raises:
        ConfigError: the token is empty, which would let everybody in.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app = app
        self.reconfigure(token)

    def reconfigure(self, token: str | None) -> None:
        """Ask for another token from now on, or for none.

        Raises:
            ConfigError: it is empty.
        """
        if token is not None and not token.strip():
            raise ConfigError("admin: token: is empty, expected a secret or none", field="token")
        self._token = token.strip().encode() if token is not None else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if self._token is None:
            problem = _not_local(scope, headers)
            answer = error_response(HTTPStatus.FORBIDDEN, problem) if problem else None
        else:
            answer = None
            if not _has_token(headers, self._token):
                answer = error_response(
                    HTTPStatus.UNAUTHORIZED,
                    "The admin API needs its token: Authorization: Bearer TOKEN.",
                    param="authorization",
                    headers={"www-authenticate": 'Bearer realm="prefixgate admin"'},
                )
        await (answer or self._app)(scope, receive, send)


def _has_token(headers: list[tuple[bytes, bytes]], token: bytes) -> bool:
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1:
        return False
    scheme, _, credentials = given[0].partition(b" ")
    # compared whatever the scheme is: how long it takes tells nothing
    same = hmac.compare_digest(credentials.strip(), token)
    return same and scheme.lower() == b"bearer"


def _not_local(scope: Scope, headers: list[tuple[bytes, bytes]]) -> str | None:
    """Why a request is not one of this machine's own, None when it is.

    A browser on this machine can be made to send requests by any page that it shows. They carry
    an Origin, or the Host of a name that was made to point here.
    """
    client = scope.get("client")
    if client is None or not _is_loopback(client[0]):
        return f"Without a token the admin API answers loopback clients only. {_HOW}"
    names = {name for name, _ in headers}
    if not names.isdisjoint(FORWARDED):
        return f"Without a token the admin API answers no forwarded requests. {_HOW}"
    if b"origin" in names:
        return f"Without a token the admin API answers no web pages. {_HOW}"
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    if len(hosts) != 1 or not _is_loopback(_without_port(hosts[0])):
        return f"Without a token the admin API must be asked as localhost. {_HOW}"
    return None


_HOST = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<name>[^:\[\]]+))(?::\d+)?")


def _without_port(host: str) -> str:
    """Empty when it is no host with at most a port."""
    match = _HOST.fullmatch(host)
    return "" if match is None else match["v6"] or match["name"]


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
