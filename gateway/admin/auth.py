"""Who may use the admin API: holders of a token, each by its role, or without any token the
machine's own users."""

from __future__ import annotations

import ipaddress
import re
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.errors import error_response
from gateway.config import Admin, AdminRole, ConfigError
from gateway.secrets import digest_of, hash_bytes, reveal

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
_ROLE = "prefixgate.admin_role"
_ORDER = tuple(AdminRole)


class Auth:
    """Middleware. Never believes a forwarded header; one can only keep a request out.

    Without any token the API is open to loopback peers, in every role, and to nobody else.

    Raises:
        ConfigError: a token is empty, which would let everybody in, cannot be read, or is another
            one's.
    """

    def __init__(self, app: ASGIApp, settings: Admin) -> None:
        self._app = app
        self.reconfigure(settings)

    def reconfigure(self, settings: Admin) -> None:
        """Have other tokens from now on.

        Raises:
            ConfigError: as above; nothing has changed then.
        """
        roles: dict[bytes, AdminRole] = {}
        if settings.token is not None:
            token = reveal(settings.token, "admin.token")
            roles[digest_of(token.encode())] = AdminRole.ADMIN
        for number, user in enumerate(settings.users):
            option = f"admin.users[{number}]"
            digest = hash_bytes(user.hash, user.token, f"{option}.token")
            if digest in roles:
                raise ConfigError(f"{option}: {user.name!r} has another one's token", field=option)
            roles[digest] = user.role
        self._roles = roles

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if not self._roles:
            scope[_ROLE] = AdminRole.ADMIN
            problem = _not_local(scope, headers)
            answer = error_response(HTTPStatus.FORBIDDEN, problem) if problem else None
        else:
            answer = None
            role = scope[_ROLE] = self._role(headers)
            if role is None:
                answer = error_response(
                    HTTPStatus.UNAUTHORIZED,
                    "The admin API needs its token: Authorization: Bearer TOKEN.",
                    param="authorization",
                    headers={"www-authenticate": 'Bearer realm="prefixgate admin"'},
                )
        await (answer or self._app)(scope, receive, send)

    def _role(self, headers: list[tuple[bytes, bytes]]) -> AdminRole | None:
        """What a request's token allows; None without one that is known."""
        given = [value for name, value in headers if name == b"authorization"]
        if len(given) != 1:
            return None
        scheme, _, credentials = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        return self._roles.get(digest_of(credentials.strip()))


def require(request: Request, needed: AdminRole) -> None:
    """Raises:
    HTTPException: 403, the request's token does not allow as much.
    """
    role = request.scope[_ROLE]
    if _ORDER.index(role) < _ORDER.index(needed):
        raise HTTPException(403, f"This needs a token of the role {needed}; yours has {role}.")


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
