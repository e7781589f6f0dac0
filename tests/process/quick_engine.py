"""A backend that answers as fast as Python can: `python -m tests.process.quick_engine`.

It prints its port, answers every request with the same JSON, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

from tests.harness import bodies
from tests.harness.behaviour import Behaviour

MODELS = bodies.model_list(("m",), "fake")
COMPLETION = bodies.json_body("/v1/completions", {"model": "m"}, b"", Behaviour())


def _answer(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


class _Connection(asyncio.Protocol):
    """One request at a time, as the gateway sends them."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._buffer = b""
        self._page, self._completion = _answer(MODELS), _answer(COMPLETION)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head = self._buffer.find(b"\r\n\r\n") + 4
        if head < 4:
            return
        if self._buffer.startswith(b"GET "):
            self._buffer = b""
            self._transport.write(self._page)
            return
        at = self._buffer.find(b"content-length: ", 0, head) + 16
        if len(self._buffer) >= head + int(self._buffer[at : self._buffer.find(b"\r", at)]):
            self._buffer = b""
            self._transport.write(self._completion)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve())
