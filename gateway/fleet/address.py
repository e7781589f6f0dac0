"""The address of a backend: parsed once, spelt in one way, refused when it is not clear."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from gateway.config import ConfigError

DEFAULT_PORTS = {"http": 80, "https": 443}

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*\.?", re.ASCII)
_NUMERIC_END = re.compile(r"(^|\.)(\d+|0x[0-9a-f]*)\.?$", re.ASCII)
_PATH = re.compile(r"[!-~]*", re.ASCII)


@dataclass(slots=True, frozen=True)
class Address:
    """Where a backend listens. Two spellings of one address are equal.

    Attributes:
        scheme: "http" or "https".
        host: lower case; an IPv6 address without its brackets.
        port: 1 to 65535.
        base_path: "" or a path that starts with "/" and does not end with one.
        authority: what the Host header says; the port only where it is not the scheme's own.
        url: the one spelling.
    """

    scheme: str
    host: str
    port: int
    base_path: str
    authority: str
    url: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises:
        ConfigError: no address of an HTTP server, or one that could be read in two ways.
        """
        try:
            return cls._of(text.strip())
        except ValueError as error:
            # whatever stands before an "@" may be a password
            shown = f"***@{text.rpartition('@')[2]}" if "@" in text else text
            raise ConfigError(
                f"backend url {shown!r}: {error} (expected http://host:port or https://host:port, "
                "with an optional path)",
                field="url",
            ) from None

    @classmethod
    def _of(cls, text: str) -> Address:
        # urlsplit would drop tabs and line breaks without a word
        if not text.isprintable() or " " in text:
            raise ValueError("has spaces or control characters in it")
        parts = urlsplit(text)
        scheme = parts.scheme
        if scheme not in DEFAULT_PORTS or "://" not in text:
            raise ValueError("must start with http:// or https://")
        if "@" in parts.netloc:
            raise ValueError("user info and '@' are not allowed")
        if "?" in text or "#" in text:
            raise ValueError("must not have a query or a fragment")
        if not _PATH.fullmatch(parts.path):
            raise ValueError("has a character in its path that must be percent-encoded")
        host = _host(parts)
        port = _port(parts)
        base_path = parts.path.rstrip("/")
        name = f"[{host}]" if ":" in host else host
        authority = name if port == DEFAULT_PORTS[scheme] else f"{name}:{port}"
        return cls(scheme, host, port, base_path, authority, f"{scheme}://{authority}{base_path}")


def _host(parts: SplitResult) -> str:
    host = parts.hostname
    if not host:
        raise ValueError("names no host")
    if parts.netloc.startswith("["):
        try:
            address = ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{host!r} is not an IPv6 address") from None
        if address.scope_id is not None:
            raise ValueError("an IPv6 zone is not allowed")
        return address.compressed
    if _NUMERIC_END.search(host):
        # resolvers would read "2" as 0.0.0.2 and "010.0.0.1" as 8.0.0.1
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError(f"{host!r} is not a dotted IPv4 address") from None
    if not host.isascii():
        raise ValueError(f"{host!r} must be in its ASCII form (xn--...)")
    if not _NAME.fullmatch(host):
        raise ValueError(f"{host!r} is not a host name")
    return host


def _port(parts: SplitResult) -> int:
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port is None:
        if parts.netloc.endswith(":"):
            raise ValueError("has a colon but no port")
        return DEFAULT_PORTS[parts.scheme]
    if port == 0:
        raise ValueError("the port must be a number from 1 to 65535")
    return port
