"""What a request's head must be, whichever parser has read it.

Parsers differ in what they let pass. What two readers of the same bytes could take for different
requests (RFC 9112, 6.3 and 11.2) is refused here for all of them, and so is what is too large.
"""

from __future__ import annotations

import re

from gateway.config import Server
from gateway.http.client import Headers
from gateway.http.errors import BadHead

MAX_PIPELINED = 32
"""Requests of one connection that wait for the answer to one before them."""

_SEPARATORS = 4
"""Bytes of a header line around its name and value."""
_HOST = re.compile(rb"[^\s,/?#@\\]*")
_VERSIONS = ("1.1", "1.0")
_NOT_FORWARDED = (b"CONNECT", b"TRACE")
_FRAMING = (b"host", b"content-length", b"transfer-encoding")


def check_head(
    method: bytes, target: bytes, version: str, headers: Headers, limits: Server
) -> dict[bytes, bytes]:
    """Args:
        version: as after "HTTP/".
        headers: names in lower case.

    Returns:
        The headers by name; of those that are given more than once, the last.

    Raises:
        BadHead: it is refused; the connection ends, for where the next request begins is not known.
    """
    if len(target) > limits.max_target:
        raise BadHead(
            f"The request target is longer than the {limits.max_target} bytes that are allowed.",
            status=414,
            code="target_too_long",
        )
    if len(headers) > limits.max_headers:
        raise BadHead(
            f"The request has more than the {limits.max_headers} headers that are allowed.",
            status=431,
            code="too_many_headers",
        )
    if version not in _VERSIONS:
        raise BadHead(
            f"HTTP/{version} is not spoken here; use HTTP/1.1.",
            code="version_not_supported",
        )
    if method in _NOT_FORWARDED:
        raise BadHead(
            f"{method.decode()} is not allowed here.", status=405, code="method_not_allowed"
        )
    given = dict(headers)
    if len(given) < len(headers):
        names = [name for name, _ in headers]
        for name in _FRAMING:
            if names.count(name) > 1:
                raise _ambiguous(f"The header {name.decode()} is given more than once.")
    if version == "1.1" and b"host" not in given:
        raise BadHead("The header host is missing.", code="missing_host")
    coding = given.get(b"transfer-encoding")
    if coding is not None:
        if b"content-length" in given:
            raise _ambiguous("Both content-length and transfer-encoding are given.")
        if coding.lower() != b"chunked" or version == "1.0":
            raise _ambiguous("transfer-encoding must be chunked, in HTTP/1.1.")
    return given


def check_host(headers: Headers) -> None:
    """h11 takes a line that begins with a blank for a part of the one before, which may be this.

    Raises:
        BadHead: its value is no name or address.
    """
    if not all(_HOST.fullmatch(value) for name, value in headers if name == b"host"):
        raise BadHead("The header host is no name or address.", code="invalid_host")


def check_size(size: int, limits: Server) -> None:
    """Args:
        size: bytes of a head so far.

    Raises:
        BadHead: it is too large.
    """
    if size > limits.max_head:
        raise BadHead(
            f"The request's head is larger than the {limits.max_head} bytes that are allowed.",
            status=431,
            code="head_too_large",
        )


def size_of(target: bytes, headers: Headers) -> int:
    """Bytes of a head, about."""
    lines = sum(len(name) + len(value) for name, value in headers)
    return len(target) + lines + _SEPARATORS * len(headers)


def malformed() -> BadHead:
    return BadHead("The request is not valid HTTP/1.1.", code="invalid_http")


def too_slow(limits: Server) -> BadHead:
    return BadHead(
        f"The request's head did not arrive within {limits.head_timeout:g} s.",
        status=408,
        code="slow_head",
    )


def _ambiguous(message: str) -> BadHead:
    return BadHead(message, code="ambiguous_framing")
