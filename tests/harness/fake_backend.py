"""An HTTP server that looks like an engine, records what it gets and misbehaves on request.

It parses and frames by hand, on a thread and event loop of its own, so that every framing and
every fault is possible and nothing it records went through a library's ideas of HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from types import TracebackType
from typing import Any

from tests.harness import bodies
from tests.harness.answer import AnswerWriter, Wire
from tests.harness.behaviour import Behaviour, Cut
from tests.harness.recorded import Recorded


class Health(StrEnum):
    OK = "ok"
    UNAVAILABLE = "unavailable"
    HANG = "hang"


class FakeBackend:
    """Usable as a context manager. All attributes may be changed while it runs.

    Attributes:
        default: how requests are answered.
        rule: asked first for each request; None as its answer means `queued`, then `default`.
        queued: behaviours of the next requests, each used once.
        models: ids under /v1/models.
        owner: who has signed them; by "vllm" and its like a gateway tells the kind of engine.
        health: of GET /health.
        pages: further GET pages ("/metrics", "/load"); 404 for paths that are in neither.
        hanging: GET pages that get no answer.
        keep_alive: seconds after which an idle connection is closed; None for never.
        requests: everything but GETs, in the order of arrival.
        probes: the GETs.
    """

    def __init__(
        self,
        *models: str,
        host: str = "127.0.0.1",
        port: int = 0,
        keep_alive: float | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.default = Behaviour()
        self.rule: Callable[[Recorded], Behaviour | None] | None = None
        self.queued: deque[Behaviour] = deque()
        self.models = models or ("m",)
        self.owner = "fake"
        self.health = Health.OK
        self.pages: dict[str, bytes] = {}
        self.hanging: set[str] = set()
        self.keep_alive = keep_alive
        self.requests: list[Recorded] = []
        self.probes: list[Recorded] = []
        self.connections: set[_Connection] = set()
        self.connection_count = 0
        self.changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Connection(self), host, port, backlog=2048, ssl=tls)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        scheme = "http" if tls is None else "https"
        name = f"[{host}]" if ":" in host else host
        self.url = f"{scheme}://{name}:{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def behave(self, **changes: Any) -> None:
        """Answer all requests from now on as a healthy engine does, but for `changes`."""
        self.default = replace(Behaviour(), **changes)

    def next(self, **changes: Any) -> None:
        """Answer one further request as a healthy engine does, but for `changes`."""
        self.queued.append(replace(Behaviour(), **changes))

    def tells(
        self,
        *,
        running: int = 0,
        waiting: int = 0,
        kv_use: float = 0.0,
        started: float = 1.7e9,
        capacity: int = 500_000,
    ) -> None:
        """From now on be a vLLM whose metrics page says this, whatever it is doing. A gateway must
        see that it is one before it first uses it."""
        self.owner = "vllm"
        self.pages["/metrics"] = bodies.vllm_metrics(
            running, waiting, kv_use, started=started, capacity=capacity
        )

    def behaviour_for(self, request: Recorded) -> Behaviour:
        ruled = self.rule(request) if self.rule is not None else None
        if ruled is not None:
            return ruled
        return self.queued.popleft() if self.queued else self.default

    async def answer(self, wire: Wire, request: Recorded) -> bool:
        """Returns:
        Whether the connection can be used again.
        """
        return await AnswerWriter(wire, request, self.behaviour_for(request)).send()

    def reset(self) -> None:
        """Forget what was recorded and behave like a healthy engine."""
        self.requests = []
        self.probes = []
        self.rule = None
        self.queued.clear()
        self.default = Behaviour()

    def wait(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait until `condition` holds; it is looked at whenever something was recorded.

        Raises:
            TimeoutError: it did not come to hold in time.
        """
        with self.changed:
            if not self.changed.wait_for(condition, timeout):
                raise TimeoutError(f"not within {timeout} s; {len(self.requests)} requests so far")

    def wait_requests(self, count: int, timeout: float = 10.0) -> list[Recorded]:
        self.wait(lambda: len(self.requests) >= count, timeout)
        return self.requests

    def wait_closed(self, request: Recorded, timeout: float = 10.0) -> float:
        """When the peer closed the request's connection."""
        self.wait(lambda: request.closed is not None, timeout)
        assert request.closed is not None
        return request.closed

    def drop(self, how: Cut, request: Recorded | None = None) -> None:
        """Break all connections that there are from this side, or a request's alone."""
        for connection in tuple(self.connections):
            if request is None or connection.number == request.connection:
                self._loop.call_soon_threadsafe(connection.break_off, how)

    def notify(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def stop(self) -> None:
        """Refuse connections from now on and break the ones there are."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        tasks = [connection.task for connection in self.connections]
        for connection in list(self.connections):
            connection.break_off(Cut.RST)
            connection.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __enter__(self) -> FakeBackend:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class _Connection(asyncio.Protocol):
    def __init__(self, backend: FakeBackend) -> None:
        self.backend = backend
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self._last: Recorded | None = None
        self._ours = False
        self.number = backend.connection_count
        backend.connection_count += 1

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.socket: socket.socket = transport.get_extra_info("socket")
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.backend.connections.add(self)
        self.task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._arrived.set()

    def eof_received(self) -> bool:
        self._left()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._left()
        self.backend.connections.discard(self)

    def _left(self) -> None:
        self.task.cancel()
        last = self._last
        if last is not None and last.closed is None and not self._ours:
            last.closed = time.monotonic()
            self.backend.notify()

    def break_off(self, how: Cut) -> None:
        """Close from this side, after what was written has gone out."""
        self._ours = True
        if how is Cut.RST:
            linger = struct.pack("ii", 1, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.transport.close()

    def progressed(self) -> None:
        self.backend.notify()

    # requests

    async def _serve(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, TimeoutError):
            await self._serve_all()
        if not self.transport.is_closing():
            self.break_off(Cut.FIN)

    async def _serve_all(self) -> None:
        keep = True
        while keep:
            request = await self._read_request()
            self._last = request
            backend = self.backend
            (backend.probes if request.method == "GET" else backend.requests).append(request)
            backend.notify()
            if request.method == "GET":
                keep = await self._serve_page(request)
            else:
                keep = await backend.answer(self, request)

    async def _read_request(self) -> Recorded:
        async with asyncio.timeout(self.backend.keep_alive):
            while not self._buffer:
                await self._more()
        head = await self._take_until(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        method, target, _ = line.decode("latin-1").split(" ", 2)
        headers = []
        for text in lines:
            name, _, value = text.partition(b":")
            headers.append((name, value.strip()))
        fields = {name.lower(): value for name, value in headers}
        if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            body = await self._take_chunks()
        else:
            body = await self._take(int(fields.get(b"content-length", b"0")))
        return Recorded(method, target, headers, body, self.number)

    async def _take_chunks(self) -> bytes:
        parts = []
        while size := int((await self._take_until(b"\r\n")).partition(b";")[0], 16):
            parts.append(await self._take(size))
            await self._take(2)
        while await self._take_until(b"\r\n"):
            pass
        return b"".join(parts)

    async def _take_until(self, end: bytes) -> bytes:
        while (at := self._buffer.find(end)) < 0:
            await self._more()
        data = bytes(self._buffer[:at])
        del self._buffer[: at + len(end)]
        return data

    async def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            await self._more()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    async def _more(self) -> None:
        self._arrived.clear()
        await self._arrived.wait()

    async def _serve_page(self, request: Recorded) -> bool:
        backend = self.backend
        body: bytes | None = backend.pages.get(request.path)
        status = 200
        if request.path in backend.hanging:
            return await AnswerWriter(self, request, Behaviour(hang=True)).send()
        # ends, not equals: a backend's URL may have a path of its own
        if request.path.endswith("/health"):
            if backend.health is Health.HANG:
                return await AnswerWriter(self, request, Behaviour(hang=True)).send()
            status = 200 if backend.health is Health.OK else 503
            body = b""
        elif request.path.endswith("/v1/models"):
            body = bodies.model_list(backend.models, backend.owner)
        if body is None:
            status, body = 404, b'{"error":{"message":"no such page"}}'
        return await AnswerWriter(self, request, Behaviour(status=status, body=body)).send()
