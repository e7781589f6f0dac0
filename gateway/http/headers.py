"""Which headers cross the gateway, in both directions.

End-to-end headers do, in their order and with their values untouched. Hop-by-hop headers (RFC
9110, 7.6.1) and those that `Connection` names do not, nor do the ones the gateway sets itself, nor
those that are meant for it: `x-prefixgate-*` in a request.
"""

from __future__ import annotations

import re

import msgspec

Headers = list[tuple[bytes, bytes]]

HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
NOT_SENT = HOP_BY_HOP | {
    *(b"host", b"content-length", b"content-encoding", b"expect", b"via", b"x-request-id")
}
NOT_RETURNED = HOP_BY_HOP | {b"content-length", b"x-request-id"}
_PLAIN_CONNECTION = frozenset({b"keep-alive", b"close", b"Keep-Alive", b"Close"})
OURS = b"x-prefixgate-"
_X = OURS[0]
_REQUEST_ID = re.compile(rb"[!-~]{1,128}")
_READ = {
    b"content-type": "content_type",
    b"accept-encoding": "accept_encoding",
    b"x-session-id": "session",
    b"authorization": "credential",
    b"x-api-key": "credential",
}
_READ_OURS = {
    b"x-prefixgate-priority": "priority",
    b"x-prefixgate-ttft-ms": "ttft_ms",
    b"x-prefixgate-max-wait-ms": "max_wait_ms",
}


class RequestHeaders(msgspec.Struct):
    """A request's headers, read once.

    Attributes:
        forward: the lines for the backend, each ending in CRLF, joined.
        content_encoding, via: of all their lines; the gateway sends its own.
    request_id: the client's, if it is short and plain.
    credential: what the client shows to prove who it is.
        tenant: of the header that names the tenant, where there is one.
        priority, ttft_ms, max_wait_ms: what it asks of the gateway's queue.
        All but `forward` are values, b"" when absent.
    """

    forward: bytes
    content_type: bytes = b""
    accept_encoding: bytes = b""
    content_encoding: bytes = b""
    via: bytes = b""
    session: bytes = b""
    request_id: bytes = b""
    credential: bytes = b""
    tenant: bytes = b""
    priority: bytes = b""
    ttft_ms: bytes = b""
    max_wait_ms: bytes = b""


def read_request(headers: Headers, tenant_header: bytes = b"") -> RequestHeaders:
    """Args:
    headers: as ASGI gives them, names in lower case.
    tenant_header: the one whose value is the tenant's name; b"" for none.
    """
    lines: list[bytes] = []
    read = RequestHeaders(b"")
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name in NOT_SENT:
            if name == b"connection":
                if value not in _PLAIN_CONNECTION:
                    named |= _tokens(value)
            elif name == b"x-request-id":
                if is_id(value):
                    read.request_id = value
            elif name == b"content-encoding":
                coding = read.content_encoding
                read.content_encoding = b"%b, %b" % (coding, value) if coding else value
            elif name == b"via":
                read.via = b"%b, %b" % (read.via, value) if read.via else value
            continue
        if name in _READ:
            setattr(read, _READ[name], value)
        elif name[0] == _X and name.startswith(OURS):
            if name in _READ_OURS:
                setattr(read, _READ_OURS[name], value)
            continue
        lines += (name, b": ", value, b"\r\n")
    if named:
        lines = [
            part
            for at in range(0, len(lines), 4)
            if lines[at] not in named
            for part in lines[at : at + 4]
        ]
    if tenant_header:
        read.tenant = next((value for name, value in headers if name == tenant_header), b"")
    read.forward = b"".join(lines)
    return read


def is_id(value: bytes) -> bool:
    """Whether a client's x-request-id is short and plain enough to be sent back."""
    return _REQUEST_ID.fullmatch(value) is not None


class ResponseHeaders(msgspec.Struct):
    """An answer's headers, read once.

    Attributes:
        forward: what the client gets, before the gateway adds its own.
        length: Content-Length; None when absent, malformed or overridden by chunked.
    """

    forward: Headers
    content_type: bytes = b""
    content_encoding: bytes = b""
    length: int | None = None
    cache_control: bool = False
    buffering: bool = False


def read_response(headers: Headers) -> ResponseHeaders:
    read = ResponseHeaders([])
    forward = read.forward
    named: frozenset[bytes] = frozenset()
    chunked = False
    for pair in headers:
        name, value = pair
        if name in NOT_RETURNED:
            if name == b"content-length":
                if value.isdigit():
                    read.length = int(value)
            elif name == b"transfer-encoding":
                chunked = True
            elif name == b"connection" and value not in _PLAIN_CONNECTION:
                named |= _tokens(value)
            continue
        if name == b"content-type":
            read.content_type = value
        elif name == b"content-encoding":
            read.content_encoding = value.strip().lower()
        elif name == b"cache-control":
            read.cache_control = True
        elif name == b"x-accel-buffering":
            read.buffering = True
        forward.append(pair)
    if chunked:
        read.length = None
    if named:
        read.forward = [pair for pair in forward if pair[0] not in named]
    return read


def _tokens(value: bytes) -> frozenset[bytes]:
    return frozenset(token.strip().lower() for token in value.split(b","))
