"""An engine without work: `python -m loadtests.replicas.instant PORT`.

It answers every request at once with one token and never runs out of cache, so that what is
measured is the gateway's. A request for `HELD` tokens and more gets its first one at once and the
others never.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import cast

import msgspec
import uvloop

from loadtests.process import HOST
from loadtests.replicas.site import MODEL

HELD = 1000
CACHE_BLOCKS = 100_000_000
BLOCK_TOKENS = 16

_EVENT = b'data: {"id":"1","object":"chat.completion.chunk","model":"%b","choices":[%b]%b}\n\n'
_CONTENT = b'{"index":0,"delta":{"role":"assistant","content":"a"},"finish_reason":null}'
_END = b'{"index":0,"delta":{},"finish_reason":"stop"}'
_PAGES = {
    b"/health": b"{}",
    b"/v1/models": b'{"object":"list","data":[{"id":"%b","object":"model","owned_by":"vllm"}]}'
    % MODEL.encode(),
    b"/metrics": (
        f'vllm:cache_config_info{{block_size="{BLOCK_TOKENS}",'
        f'num_gpu_blocks="{CACHE_BLOCKS}"}} 1.0\n'
        f'vllm:num_requests_running{{model_name="{MODEL}"}} 0.0\n'
        f'vllm:num_requests_waiting{{model_name="{MODEL}"}} 0.0\n'
    ).encode(),
}


class _Ask(msgspec.Struct):
    max_tokens: int = 1


_decode = msgspec.json.Decoder(_Ask).decode


class Connection(asyncio.Protocol):
    """One request at a time, as the gateway sends them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast(asyncio.Transport, transport).write  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, found, body = self._data.partition(b"\r\n\r\n")
        if not found:
            return
        fields = dict(
            line.lower().split(b":", 1) for line in bytes(head).split(b"\r\n")[1:] if b":" in line
        )
        if len(body) < int(fields.get(b"content-length", b"0")):
            return
        self._data.clear()
        method, path, _ = bytes(head).split(b" ", 2)
        if method == b"GET":
            self._page(path)
        else:
            self._answer(bytes(body))

    def _page(self, path: bytes) -> None:
        page = _PAGES.get(path)
        status = b"404 Not Found" if page is None else b"200 OK"
        self._write(
            b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(page or b""), page or b"")
        )

    def _answer(self, body: bytes) -> None:
        name = MODEL.encode()
        first = _EVENT % (name, _CONTENT, b"")
        self._write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n" + _chunk(first)
        )
        if _decode(body).max_tokens < HELD:
            usage = b',"usage":{"prompt_tokens":%d,"completion_tokens":1,"total_tokens":%d}'
            tokens = len(body) // 4
            last = _EVENT % (name, _END, usage % (tokens, tokens + 1)) + b"data: [DONE]\n\n"
            self._write(_chunk(last) + b"0\r\n\r\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, HOST, port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(main(int(sys.argv[1])))
