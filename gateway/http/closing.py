"""Telling clients of a gateway that stops to go elsewhere with their next request."""

from __future__ import annotations

from gateway.http.client import EXTENSION, Message, Scope, Send


def closing(scope: Scope, send: Send) -> Send:
    """The same `send`, for an answer after which the connection is closed."""
    extensions = scope.get("extensions")
    client = extensions.get(EXTENSION) if extensions else None
    if client is not None:
        client.close_after()
        return send

    async def send_last(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if pair[0] != b"connection"]
            message = {**message, "headers": [*headers, (b"connection", b"close")]}
        await send(message)

    return send_last
