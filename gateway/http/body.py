"""Reading a request's body, bounded in size and time."""

from __future__ import annotations

import asyncio

from gateway.config import Server
from gateway.http.client import Client, ClientGone, Headers, Message, Receive
from gateway.http.errors import SlowBody, TooLarge

SLOWEST = 64 * 1024
"""Bytes per second: what arrives at this pace or faster never runs into the time limit."""


async def read_body(client: Client, headers: Headers, receive: Receive, limits: Server) -> bytes:
    """The whole body.

    Raises:
        TooLarge: more than `max_body` bytes, announced or sent.
        SlowBody: it did not come within `body_timeout`, plus a second per `SLOWEST` bytes.
        ClientGone: the client left before it was complete.
    """
    body = client.take_body()
    if body is None:
        body = await _collect(headers, receive, limits)
    if len(body) > limits.max_body:
        raise _too_large(limits)
    return body


async def _collect(headers: Headers, receive: Receive, limits: Server) -> bytes:
    for name, value in headers:
        if name == b"content-length" and int(value) > limits.max_body:
            raise _too_large(limits)
    parts: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    start = loop.time() + limits.body_timeout
    more = True
    try:
        async with asyncio.timeout_at(start) as limit:
            while more:
                message = await receive()
                part = _part(message)
                parts.append(part)
                size += len(part)
                if size > limits.max_body:
                    raise _too_large(limits)
                limit.reschedule(start + size / SLOWEST)
                more = message.get("more_body", False)
    except TimeoutError:
        raise SlowBody(
            f"The request body did not arrive within {limits.body_timeout:g} s.", code="slow_body"
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
