"""Which headers cross the gateway, in both directions.

End-to-end headers do, in their order and with their values untouched. Hop-by-hop headers (RFC
9110, 7.6.1) and those that `Connection` names do not, nor do the ones the gateway sets itself, nor
those that are meant for it: `x-prefixgate-*` in a request. Nor do those by which the parts of a
serving stack tell each other where a request goes: where it goes is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Container

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
TARGETS = frozenset(
    {
        b"x-prefiller-url",
        b"x-prefiller-host-port",
        b"x-encoder-hosts-ports",
        b"x-kv-cache-source-host-port",
        b"x-gateway-destination-endpoint",
        b"x-gateway-destination-endpoint-subset",
        b"x-data-parallel-host-port",
        b"x-data-parallel-rank",
        b"x-dp-rank",
        b"x-vllm-priority",
        b"x-smg-routing-key",
        b"x-worker-instance-id",
        b"x-prefill-instance-id",
        b"x-dynamo-worker-instance-id",
        b"x-dynamo-prefill-instance-id",
        b"x-dynamo-dp-rank",
        b"x-dynamo-prefill-dp-rank",
        b"x-dynamo-request-priority",
        b"x-dynamo-request-strict-priority",
        b"x-override-rid",
        b"x-override-bootstrap-host",
        b"x-override-bootstrap-port",
        b"x-override-bootstrap-room",
        b"x-override-conversation-id",
        b"x-override-routed-dp-rank",
        b"x-override-disagg-prefill-dp-rank",
        b"x-override-priority",
    }
)
"""Engines, sidecars and other gateways take targets, ranks and priorities from these."""
FORWARDED = frozenset(
    {
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"x-client-ip",
        b"true-client-ip",
        b"cf-connecting-ip",
    }
)
"""Where a request came from, as whoever is before us has it."""
CREDENTIALS = frozenset({b"authorization", b"x-api-key", b"api-key", b"cookie"})
_NOT_SENT = (
    HOP_BY_HOP
    | TARGETS
    | {b"host", b"content-length", b"content-encoding", b"expect", b"via", b"x-request-id"}
)
NOT_SENT = _NOT_SENT | FORWARDED
TRUSTED_NOT_SENT = _NOT_SENT | {b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto"}
"""The same of a peer whose forwarded headers are believed."""
MAX_TENANT = 200
"""Characters kept of a tenant's name."""
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
    b"api-key": "credential",
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
        host: the authority that it was sent to.
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
    host: bytes = b""
    priority: bytes = b""
    ttft_ms: bytes = b""
    max_wait_ms: bytes = b""


def read_request(
    headers: Headers, tenant_header: bytes = b"", not_sent: frozenset[bytes] = NOT_SENT
) -> RequestHeaders:
    """Args:
    headers: as ASGI gives them, names in lower case.
    tenant_header: the one whose value is the tenant's name; b"" for none.
    not_sent: those that are at most read, and stop here.
    """
    lines: list[bytes] = []
    read = RequestHeaders(b"")
    named: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name in not_sent:
            if name == b"host":
                read.host = value
            elif name == b"connection":
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
            elif name in _READ:
                setattr(read, _READ[name], value)
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


def forwarded(headers: Headers, host: bytes, peer: str, scheme: str, *, trusted: bool) -> bytes:
    """Lines that tell a backend where a request came from.

    `X-Forwarded-For` is the peer, after what a trusted peer says was before it. `-Proto` and
    `-Host` are what the request was sent with to us, or to a trusted peer.

    Args:
        peer: address of the client's side of the connection; "" when it has none.
    """
    via = peer.encode("latin-1", "replace")
    proto = scheme.encode()
    if trusted:
        chain: list[bytes] = []
        for name, value in headers:
            if name == b"x-forwarded-for":
                chain.append(value)
            elif name == b"x-forwarded-proto":
                proto = value
            elif name == b"x-forwarded-host":
                host = value
        via = b", ".join((*chain, via) if via else chain)
    lines = b"x-forwarded-proto: %b\r\n" % proto
    if via:
        lines = b"x-forwarded-for: %b\r\n%b" % (via, lines)
    return b"%bx-forwarded-host: %b\r\n" % (lines, host) if host else lines


def without_credentials(lines: bytes) -> bytes:
    """Header lines without those by which a client shows who it is."""
    return without(lines, CREDENTIALS)


def without(lines: bytes, names: Container[bytes]) -> bytes:
    """Header lines without those of some names, which are in lower case."""
    kept = (
        line
        for line in lines.splitlines(keepends=True)
        if line.partition(b":")[0].lower() not in names
    )
    return b"".join(kept)


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
