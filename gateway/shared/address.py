"""Where Redis is, out of a URL."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from gateway.config import ConfigError

_SCHEMES = ("redis", "rediss", "unix")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z+]{0,15}")
_EXPECTED = "expected redis://, rediss:// or unix://"
_PORT = 6379
_SENTINEL_PORT = 26379
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[^\s:\[\]/]+))(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """Attributes:
    host: a name or an address; the path of a unix socket when there is no port.
    """

    host: str
    port: int | None

    def __str__(self) -> str:
        if self.port is None:
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Place:
    """What a URL says.

    Attributes:
        addresses: at least one.
        database: its number.
    """

    addresses: tuple[Address, ...]
    database: int = 0
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def place_of(url: str, *, sentinels: bool, option: str = "redis.url") -> Place:
    """Read `redis[s]://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]...][/DATABASE]`, or
    `unix://[USER[:PASSWORD]@]/PATH[?db=DATABASE]`.

    Raises:
        ConfigError: it says something else. The message has no password.
    """

    def wrong(what: str) -> ConfigError:
        return ConfigError(f"{option}: {what}", field=option)

    try:
        parts = urlsplit(url)
    except ValueError:  # its message has what stands before the host
        raise wrong(f"cannot be read, {_EXPECTED}") from None
    if parts.scheme not in _SCHEMES:
        scheme, mark, _ = url.partition("://")
        if not mark:
            found = "begins with no scheme"
        elif _SCHEME.fullmatch(scheme):
            found = f"scheme {scheme!r}"
        else:  # it may have a password in it
            found = "an unknown scheme"
        raise wrong(f"{found}, {_EXPECTED}")
    if "@" in f"{parts.path}{parts.query}{parts.fragment}":
        raise wrong("has an '@' too late; '/', '?' and '#' in a password are %2F, %3F and %23")
    if parts.fragment:
        raise wrong(f"'#{parts.fragment}' has no meaning here")
    login, _, hosts = parts.netloc.rpartition("@")
    username, colon, password = login.partition(":")
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(query.keys() - {"db"})
    if unknown:
        raise wrong(f"{unknown[0]!r} after the '?', expected db; all else has an option of its own")
    path = parts.path
    database = query.get("db")
    if parts.scheme == "unix":
        if hosts or len(path) < 2:
            raise wrong("expected unix:///PATH of a socket")
        addresses: tuple[Address, ...] = (Address(unquote(path), None),)
    else:
        default = _SENTINEL_PORT if sentinels else _PORT
        addresses = tuple(_address(host, default, wrong) for host in hosts.split(","))
        if path.strip("/"):
            if database is not None:
                raise wrong("names a database twice, after the '/' and after the '?'")
            database = path.strip("/")
    if database is not None and not (database.isascii() and database.isdigit()):
        raise wrong(f"database {database!r}, expected a number")
    return Place(
        addresses,
        int(database or 0),
        parts.scheme == "rediss",
        unquote(username) or None,
        unquote(password) if colon else None,
    )


def _address(text: str, default: int, wrong: Callable[[str], ConfigError]) -> Address:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or default) if found is not None else 0
    if found is None or not 0 < port < 1 << 16:
        raise wrong(f"server {text!r}, expected HOST or HOST:PORT")
    return Address((found["name"] or found["v6"]).lower(), port)
