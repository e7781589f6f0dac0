"""An engine's pages on a real socket, as each kind of engine has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

Pages = dict[str, tuple[int, bytes]]


def ok(body: Any) -> tuple[int, bytes]:
    return 200, body if isinstance(body, bytes) else msgspec.json.encode(body)


def model_list(*models: str, owner: str, length: int | None = None) -> tuple[int, bytes]:
    cards: list[dict[str, object]] = [
        {"id": model, "object": "model", "owned_by": owner} for model in models
    ]
    if length is not None:
        cards = [card | {"max_model_len": length} for card in cards]
    return ok({"object": "list", "data": cards})


def vllm_metrics(*, started: float | None = 1.7e9, engines: int = 1, **labels: object) -> bytes:
    shown = {"block_size": 16, "num_gpu_blocks": 1000, "cache_dtype": 'a "quoted\\" one'} | labels
    lines = ["# HELP vllm:cache_config_info x", "# TYPE vllm:cache_config_info gauge"]
    for rank in range(engines):
        values = [
            f'{name}="{_escaped(value)}"' for name, value in (shown | {"engine": rank}).items()
        ]
        lines.append(f"vllm:cache_config_info{{{','.join(values)}}} 1.0")
    if started is not None:
        lines.append(f"process_start_time_seconds {started}")
    return "\n".join(lines).encode() + b"\n"


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"')


def vllm(*models: str, **metrics: Any) -> Pages:
    return {
        "/v1/models": model_list(*(models or ("m",)), owner="vllm", length=4096),
        "/health": ok(b""),
        "/version": ok({"version": "0.33.0"}),
        "/metrics": ok(vllm_metrics(**metrics)),
    }


def sglang(*models: str) -> Pages:
    return {
        "/v1/models": model_list(*(models or ("m",)), owner="sglang", length=8192),
        "/ready": ok(b""),
        "/health": ok(b""),
        "/server_info": ok({"page_size": 64, "max_total_num_tokens": 50_000, "version": "0.5.23"}),
    }


def llamacpp() -> Pages:
    return {
        "/v1/models": model_list("m.gguf", owner="llamacpp"),
        "/health": ok({"status": "ok"}),
        "/props": ok({"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}}),
    }


def trtllm() -> Pages:
    return {
        "/v1/models": model_list("m", owner="tensorrt_llm"),
        "/health": ok(b""),
        "/version": ok({"version": "1.2"}),
        "/server_info": ok({"disaggregated_params": None}),
        "/metrics": ok(b"[]"),
    }


def tgi() -> Pages:
    return {
        "/v1/models": model_list("org/m", owner="org/m"),
        "/health": ok(b""),
        "/info": ok({"model_id": "org/m", "max_total_tokens": 4096}),
    }


def ollama() -> Pages:
    return {
        "/v1/models": model_list("llama3:8b", owner="library"),
        "/api/version": ok({"version": "0.12.0"}),
    }


class FakeEngine:
    """Attributes:
    pages: what is answered, by path; 404 for all others.
    hanging: paths that get no answer.
    trickling: paths whose answer goes on for ever, a byte at a time.
    asked: paths in the order in which they were asked for.
    caught: set when a request for a hanging path has come.
    """

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self.hanging: set[str] = set()
        self.trickling: set[str] = set()
        self.asked: list[str] = []
        self.caught = asyncio.Event()
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, at the same port as before if it listened already."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1].decode()
            self.asked.append(path)
            if path in self.hanging:
                self.caught.set()
                await asyncio.Event().wait()
            status, body = self.pages.get(path, (404, b'{"detail":"Not Found"}'))
            if path in self.trickling:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.001)
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)))
            writer.write(body)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def engine(pages: Pages) -> AsyncIterator[FakeEngine]:
    fake = FakeEngine(pages)
    await fake.start()
    try:
        yield fake
    finally:
        await fake.stop()
