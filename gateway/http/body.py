"""Reading requests' bodies, bounded in size, in time, and in what is held of all of them."""

from __future__ import annotations

import asyncio

from gateway.config import Server
from gateway.http.client import ClientGone, Message, Receive
from gateway.http.context import RequestContext
from gateway.http.errors import BodiesFull, SlowBody, TooLarge
from gateway.http.inflate import check_coding, inflate

SLOWEST = 64 * 1024
"""Bytes per second: what arrives at this pace or faster never runs into the time limit."""

_INLINE = 4 * 1024
"""Compressed bytes that are inflated at once; more of them might take too long for that."""


class Bodies:
    """The bodies that are held: being read, waiting, or sent and not taken yet.

    Attributes:
        limits: may be replaced at any time.
        held: bytes.
    """

    def __init__(self, limits: Server) -> None:
        self.limits = limits
        self.held = 0

    async def read(self, context: RequestContext, receive: Receive) -> bytes:
        """A request's whole body, plain. It is held until `let_go`.

        Raises:
            TooLarge: more than `max_body` bytes, announced or sent, compressed or not.
            SlowBody: it did not come within `body_timeout`, plus a second per `SLOWEST` bytes.
            BodiesFull: too much is held already.
            UnsupportedCoding, Malformed: it is compressed in a way that is not read here.
            ClientGone: the client left before it was complete.
        """
        limits = self.limits
        headers = context.headers
        assert headers is not None
        coding = headers.content_encoding
        if coding:
            check_coding(coding)
        body = context.client.take_body()
        if body is None:
            body = await self._collect(context, receive, limits)
        else:
            context.held = size = len(body)
            self.held += size
            if size > limits.max_body:
                raise _too_large(limits)
            if self.held > limits.max_body_total:
                raise BodiesFull
        if coding and coding != b"identity":
            if len(body) <= _INLINE:
                body = inflate(body, coding, limits.max_body)
            else:
                body = await asyncio.to_thread(inflate, body, coding, limits.max_body)
            self._hold(context, len(body) - context.held)
        return body

    def let_go(self, context: RequestContext) -> None:
        """The body is not needed any more."""
        self.held -= context.held
        context.held = 0
        context.body = b""

    def _hold(self, context: RequestContext, size: int) -> None:
        context.held += size
        self.held += size
        if self.held > self.limits.max_body_total and size > 0:
            raise BodiesFull

    async def _collect(self, context: RequestContext, receive: Receive, limits: Server) -> bytes:
        for name, value in context.scope["headers"]:
            if name == b"content-length" and int(value) > limits.max_body:
                raise _too_large(limits)
        parts: list[bytes] = []
        loop = asyncio.get_running_loop()
        start = loop.time() + limits.body_timeout
        more = True
        try:
            async with asyncio.timeout_at(start) as limit:
                while more:
                    message = await receive()
                    part = _part(message)
                    parts.append(part)
                    self._hold(context, len(part))
                    if context.held > limits.max_body:
                        raise _too_large(limits)
                    limit.reschedule(start + context.held / SLOWEST)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise SlowBody(
                f"The request body did not arrive within {limits.body_timeout:g} s.",
                code="slow_body",
            ) from None
        return b"".join(parts)


def _part(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientGone
    body: bytes = message.get("body", b"")
    return body


def _too_large(limits: Server) -> TooLarge:
    return TooLarge(
        f"The request body is larger than the {limits.max_body} bytes that are allowed.",
        code="body_too_large",
    )
