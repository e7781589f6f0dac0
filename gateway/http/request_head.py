"""The head of a request as a backend gets it."""

from __future__ import annotations

from gateway.disagg.connector import Leg, Release
from gateway.disagg.handover import Handover
from gateway.fleet.access import Access
from gateway.fleet.backend import Backend
from gateway.http.context import RequestContext
from gateway.http.headers import without, without_credentials

_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


def request_head(
    context: RequestContext, backend: Backend, size: int, authorization: bytes
) -> bytes:
    """Request line and headers, up to and including the blank line.

    Args:
        size: bytes of the body.
        authorization: the backend's own credentials; b"" to send on the client's.
    """
    scope, headers = context.scope, context.headers
    assert headers is not None
    query = scope["query_string"]
    target = backend.address.base_path.encode() + scope["raw_path"]
    if query:
        target += b"?" + query
    lines = headers.forward
    if authorization:
        lines = b"%bauthorization: %b\r\n" % (without_credentials(lines), authorization)
    bodiless = not size and scope["method"] in _BODILESS
    return b"%b %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\n%b\r\n" % (
        scope["method"].encode(),
        target,
        backend.address.authority.encode(),
        lines,
        context.record.id.encode(),
        b"" if bodiless else b"content-length: %d\r\n" % size,
    )


def leg_head(
    context: RequestContext,
    backend: Backend,
    access: Access,
    handover: Handover,
    leg: Leg | Release | None = None,
) -> bytes:
    """The same for a part of a handover. The request id is the same in all of them.

    Args:
        leg: the decode leg when not given; of the others the answer is read here, so that it must
            not be compressed.
    """
    scope, headers = context.scope, context.headers
    assert headers is not None
    plain = leg is not None
    leg = leg or handover.decode_leg
    target = backend.address.base_path.encode()
    if isinstance(leg, Release) and leg.path is not None:
        target += leg.path.encode()
    else:
        target += scope["raw_path"]
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
    replaced = {name.lower() for name, _ in leg.headers}
    if plain:
        replaced.add(b"accept-encoding")
    lines = without(headers.forward, replaced) if replaced else headers.forward
    if access.authorization:
        lines = b"%bauthorization: %b\r\n" % (without_credentials(lines), access.authorization)
    return b"POST %b HTTP/1.1\r\nhost: %b\r\n%b%bcontent-length: %d\r\n\r\n" % (
        target,
        backend.address.authority.encode(),
        lines,
        b"".join(b"%b: %b\r\n" % pair for pair in leg.headers),
        len(leg.body),
    )
