"""A fake engine that fails when it is told to, as a process of its own.

python -m loadtests.chaos.engine PORT INCARNATION JOURNAL SEED FIRST_TOKEN

Lines on its standard input are orders: `FAULT SHARE` from now on for that share of the requests, or
an empty line for none. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
import time
from pathlib import Path
from random import Random
from typing import cast

import msgspec
import uvloop

from loadtests.chaos import answers
from loadtests.chaos.answers import Ask
from loadtests.chaos.faults import REFUSALS, RETRY_AFTER, Fault
from loadtests.chaos.journal import Journal, Step
from loadtests.process import HOST

BETWEEN_TOKENS = 0.01
"""Seconds."""
SLOWNESS = 10.0
_JUNK = b"\x16\x03\x01\x02\x00\x01\x00\xfc\r\n\r\n\x00\xff"
_JSON = "application/json"
_BEFORE_THE_HEAD = frozenset({Fault.CLOSE, Fault.CUT_HEAD, Fault.JUNK_HEAD})
_IN_THE_MIDDLE = frozenset({Fault.CUT, Fault.SILENT, Fault.JUNK, Fault.ERROR_EVENT})
_decode = msgspec.json.Decoder(Ask).decode


class Engine:
    """What its connections share.

    Args:
        first_token: seconds until an answer begins, on average.
    """

    def __init__(self, incarnation: str, journal: Journal, seed: int, first_token: float) -> None:
        self.first_token = first_token
        self.incarnation = incarnation
        self.journal = journal
        self.random = Random(seed)
        self.started = time.time()
        self.running = 0
        self._fault: Fault | None = None
        self._share = 0.0

    def order(self, line: bytes) -> None:
        name, _, share = line.decode().partition(" ")
        self._fault = Fault[name] if name else None
        self._share = float(share or 0)

    @property
    def sick(self) -> bool:
        return self._fault is Fault.SICK

    def draw_fault(self) -> Fault | None:
        """What is wrong with the next answer."""
        return self._fault if self.random.random() < self._share else None


class Connection(asyncio.Protocol):
    """One request at a time, as the gateway sends them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._buffer = bytearray()
        self._size = 0
        """Of the request that is coming in, once its head is known."""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._socket: socket.socket = transport.get_extra_info("socket")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._size:
            end = self._buffer.find(b"\r\n\r\n") + 4
            if end < 4:
                return
            self._head = bytes(self._buffer[:end])
            _, found, rest = self._head.lower().partition(b"content-length:")
            self._size = end + (int(rest.partition(b"\r")[0]) if found else 0)
        if len(self._buffer) < self._size:
            return
        body = bytes(self._buffer[len(self._head) : self._size])
        del self._buffer[: self._size]
        self._size = 0
        method, path, _ = self._head.split(b" ", 2)
        if method == b"GET":
            self._page(path)
        else:
            self._task = asyncio.get_running_loop().create_task(self._run(path, body))

    def _page(self, path: bytes) -> None:
        engine = self._engine
        if path == b"/health":
            self._reply(503 if engine.sick else 200, b"")
        elif path == b"/v1/models":
            self._reply(200, answers.model_list())
        elif path == b"/metrics":
            self._reply(200, answers.metrics(engine.started, engine.running))
        else:
            self._reply(404, answers.error(404))

    def _reply(self, status: int, body: bytes, extra: str = "") -> None:
        self._transport.write(answers.head(status, _JSON, len(body), extra) + body)

    async def _run(self, path: bytes, body: bytes) -> None:
        engine = self._engine
        engine.running += 1
        try:
            with contextlib.suppress(asyncio.CancelledError):  # the gateway has gone
                await self._answer(path, _decode(body), len(body))
        finally:
            engine.running -= 1

    async def _answer(self, path: bytes, ask: Ask, size: int) -> None:
        engine, name = self._engine, ask.user
        engine.journal.note(name, Step.GOT)
        fault = engine.draw_fault()
        if fault is Fault.SICK or (fault is Fault.ERROR_EVENT and not ask.stream):
            fault = None
        if fault is not None:
            engine.journal.note(name, fault)
        if fault is Fault.HANG:
            await asyncio.Event().wait()
        if fault in REFUSALS:
            status = REFUSALS[fault]
            later = fault in (Fault.BUSY_LATER, Fault.UNAVAILABLE_LATER)
            self._reply(
                status, answers.error(status), f"retry-after: {RETRY_AFTER}\r\n" if later else ""
            )
            return
        pace = SLOWNESS if fault is Fault.SLOW else 1.0
        wait = engine.random.expovariate(1 / engine.first_token) * pace
        if ask.stream and fault not in _BEFORE_THE_HEAD:
            await self._stream(ask, size, fault, wait, BETWEEN_TOKENS * pace)
            return
        await asyncio.sleep(wait)
        if fault is Fault.CLOSE:
            self._break_off()
        elif fault is Fault.CUT_HEAD:
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-ty")
            self._break_off()
        elif fault is Fault.JUNK_HEAD:
            self._transport.write(_JUNK)
        else:
            make = answers.embedding if path.endswith(b"/embeddings") else answers.whole
            self._whole(name, make(ask, engine.incarnation, size), fault)

    def _whole(self, name: str, body: bytes, fault: Fault | None) -> None:
        data = answers.head(200, _JSON, len(body)) + body
        note = self._engine.journal.note
        if fault in (Fault.CUT, Fault.SILENT, Fault.JUNK):
            # Junk inside a body of known length would be the body: here it is chunked.
            part = self._engine.random.randrange(len(body))
            if fault is Fault.JUNK:
                data = answers.head(200, _JSON, None) + answers.chunk(body[: part + 1]) + _JUNK
            else:
                data = data[: len(data) - len(body) + part]
            self._transport.write(data)
            note(name, Step.PART)
            if fault is not Fault.SILENT:
                self._break_off()
            return
        self._transport.write(data)
        note(name, Step.BEGUN)
        note(name, Step.DONE)

    async def _stream(
        self, ask: Ask, size: int, fault: Fault | None, wait: float, pause: float
    ) -> None:
        """As of vLLM, the head goes out at once: it says nothing of the work being done."""
        engine, write = self._engine, self._transport.write
        stop = engine.random.randrange(ask.max_tokens + 2)
        note = engine.journal.note
        write(answers.head(200, "text/event-stream; charset=utf-8", None))
        for number, event in enumerate(answers.events(ask, engine.incarnation, size)):
            await asyncio.sleep(pause if number else wait)
            spoilt = number == stop and fault in _IN_THE_MIDDLE
            write(self._spoilt(event, fault) if spoilt else answers.chunk(event))
            if spoilt:
                if fault in (Fault.CUT, Fault.JUNK):
                    self._break_off()
                return
            if number == 1:  # the first tells the role
                note(ask.user, Step.BEGUN)
        write(answers.LAST_CHUNK)
        note(ask.user, Step.DONE)

    def _spoilt(self, event: bytes, fault: Fault | None) -> bytes:
        """What goes out in place of `event`, the last of its stream."""
        if fault is Fault.ERROR_EVENT:
            return answers.chunk(answers.error_event()) + answers.LAST_CHUNK
        half = event[: len(event) // 2]
        if fault is Fault.JUNK:
            return self._engine.random.choice((b"", answers.chunk(half))) + _JUNK
        # nothing of it, half of it as a whole chunk, half of its chunk
        ways = (b"", answers.chunk(half), answers.chunk(event)[: len(event) // 2])
        return self._engine.random.choice(ways)

    def _break_off(self) -> None:
        """Close, after what was written has gone out; half of the times with a RST."""
        if self._engine.random.random() < 0.5:
            linger = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._transport.close()


async def serve(port: int, engine: Engine) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    orders = bytearray()

    def read_orders() -> None:
        data = os.read(0, 4096)
        if not data:
            loop.remove_reader(0)
            ended.set()
        orders.extend(data)
        *lines, rest = bytes(orders).split(b"\n")
        orders[:] = rest
        for line in lines:
            engine.order(line)

    loop.add_reader(0, read_orders)
    await loop.create_server(lambda: Connection(engine), HOST, port, backlog=1024)
    await ended.wait()


def main() -> None:
    port, incarnation, journal, seed, first_token = sys.argv[1:]
    notes = Journal(Path(journal), incarnation)
    engine = Engine(incarnation, notes, int(seed), float(first_token))
    uvloop.run(serve(int(port), engine))


if __name__ == "__main__":
    main()
