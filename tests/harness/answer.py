"""Sending one answer: framing, pace, and every way of doing it badly."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from tests.harness import bodies
from tests.harness.behaviour import Behaviour, Cut, Framing, Inside
from tests.harness.recorded import Recorded

POLL = 0.005
STREAMING_ROUTES = ("/chat/completions", "/completions", "/responses", "/messages")


class Wire(Protocol):
    """The connection, as far as an answer is concerned."""

    transport: asyncio.Transport

    def break_off(self, how: Cut) -> None: ...
    def progressed(self) -> None:
        """Something was recorded."""


Settle = Callable[[], Awaitable[Behaviour]]


class AnswerWriter:
    """Sends one answer.

    Args:
        settle: tells how to answer, once that has come out; `how` decides until then. A stream
            that has an early head has sent it by then, so a failure is an event in it.
    """

    def __init__(
        self, wire: Wire, request: Recorded, how: Behaviour, settle: Settle | None = None
    ) -> None:
        self._wire = wire
        self._request = request
        self._how = how
        self._settle = settle
        self._framing = how.framing
        self._keep = True

    async def send(self) -> bool:
        """Returns:
        Whether the connection can be used again.
        """
        how = self._how
        if how.hang:
            await asyncio.Event().wait()
        if how.script is not None:
            return await self._play(how)
        for status in how.informational:
            await self._write(b"HTTP/1.1 %d Early\r\nlink: </x>\r\n\r\n" % status)
        fields = self._fields()
        if self._settle is not None and not (how.early_head and self._streams(fields)):
            self._how = await self._settle()
            self._settle = None
        if self._streams(fields):
            return await self._stream(fields)
        return await self._whole(fields)

    def _fields(self) -> dict[str, Any]:
        try:
            parsed = json.loads(self._request.body or b"{}")
        except ValueError:
            return {}
        return parsed if isinstance(parsed, dict) else {}

    def _streams(self, fields: dict[str, Any]) -> bool:
        return (
            fields.get("stream") is True
            and self._how.status == 200
            and self._how.body is None
            and self._request.path.endswith(STREAMING_ROUTES)
        )

    async def _play(self, how: Behaviour) -> bool:
        await self._is_time(how)
        script = how.script or ()
        for number, segment in enumerate(script, 1):
            if isinstance(segment, Cut):
                self._wire.break_off(segment)
                return False
            self._request.complete = number == len(script)
            if isinstance(segment, bytes):
                await self._write(segment)
                self._request.sent += 1
            else:
                await asyncio.sleep(segment)
        return True

    async def _is_time(self, how: Behaviour) -> None:
        await asyncio.sleep(how.ttft)
        # It is set in another thread, which no event of this loop can wait for.
        while how.until is not None and not how.until.is_set():  # noqa: ASYNC110
            await asyncio.sleep(POLL)

    async def _whole(self, fields: dict[str, Any]) -> bool:
        how, path, body = self._how, self._request.path, self._request.body
        await self._is_time(how)
        answer = how.body
        if answer is None:
            if how.status >= 400:
                answer = bodies.error_body(path, how.status)
            elif how.status == 204:
                answer = b""
            else:
                answer = bodies.json_body(path, fields, body, how)
        if how.gzip:
            compressor = zlib.compressobj(wbits=31)
            answer = compressor.compress(answer) + compressor.flush()
        if self._framing is Framing.AUTO:
            self._framing = Framing.LENGTH
        step = -(-len(answer) // how.pieces) or 1
        pieces = [answer[at : at + step] for at in range(0, len(answer), step)] or [b""]
        length = None if how.status == 204 else len(answer)
        await self._write(self._head("application/json", length, len(pieces[0])))
        if how.cut_after is not None:
            await self._write(answer[: how.cut_after])
            self._wire.break_off(how.cut)
            return False
        for number, piece in enumerate(pieces, 1):
            if number == len(pieces):
                await asyncio.sleep(how.tail)
            self._request.complete = number == len(pieces) and not self._chunked
            if piece:
                await self._write(self._frame(piece))
                await asyncio.sleep(0.001 if how.pieces > 1 else 0)
        return await self._end()

    async def _stream(self, fields: dict[str, Any]) -> bool:
        how = self._how
        if self._framing is Framing.AUTO:
            self._framing = Framing.CHUNKED
        if how.early_head:
            await self._write(self._head("text/event-stream; charset=utf-8", None, 0))
            if self._settle is not None:
                self._how = how = await self._settle()
        if how.status >= 400:
            await self._write(self._frame(bodies.error_event(self._request.path)))
            return await self._end()
        await self._is_time(how)
        events = bodies.stream_events(self._request.path, fields, self._request.body, how)
        if how.style is not None:
            events = [how.style(event) for event in events]
        compressor = zlib.compressobj(wbits=31) if how.gzip else None
        head = b""
        async for event in self._paced(events):
            data = event
            if compressor is not None:
                data = compressor.compress(event) + compressor.flush(zlib.Z_SYNC_FLUSH)
            if self._request.sent == 0 and not how.early_head:
                head = self._head("text/event-stream; charset=utf-8", None, len(data))
            if self._cut_here():
                await self._write(head + self._part(data))
                self._wire.break_off(how.cut)
                return False
            await self._write(head + self._frame(data))
            head = b""
            self._request.sent += 1
            self._wire.progressed()
        if self._cut_here():
            self._wire.break_off(how.cut)
            return False
        await asyncio.sleep(how.tail)
        if compressor is not None:
            await self._write(self._frame(compressor.flush()))
        return await self._end()

    async def _paced(self, events: list[bytes]) -> AsyncIterator[bytes]:
        for number, event in enumerate(events):
            if number == self._how.error_after:
                yield bodies.error_event(self._request.path)
                return
            if number == self._how.silent_after:
                if self._how.comments is None:
                    await asyncio.Event().wait()
                while True:
                    yield b": keep-alive\n\n"
                    await asyncio.sleep(self._how.comments or 0)
            if number and self._how.itl:
                await asyncio.sleep(self._how.itl)
            yield event

    def _part(self, event: bytes) -> bytes:
        half = len(event) // 2
        if self._how.cut_inside is Inside.EVENT:
            return self._frame(event[:half])
        if self._how.cut_inside is Inside.CHUNK:
            self._request.answer += event[:half]
            opening = b"%x\r\n" % len(event) if self._chunked else b""
            return opening + event[:half]
        return b""

    @property
    def _chunked(self) -> bool:
        return self._framing in (Framing.CHUNKED, Framing.BOTH)

    def _cut_here(self) -> bool:
        return self._how.cut_after is not None and self._request.sent == self._how.cut_after

    def _head(self, content_type: str, length: int | None, first: int) -> bytes:
        how, framing = self._how, self._framing
        version = "1.0" if framing is Framing.HTTP10 else "1.1"
        lines = [f"HTTP/{version} {how.status} Fake", f"content-type: {content_type}"]
        if how.gzip:
            lines.append("content-encoding: gzip")
        if framing is Framing.BOTH:
            lines.append(f"content-length: {first}")
        if self._chunked:
            lines.append("transfer-encoding: chunked")
        elif framing is Framing.LENGTH and length is not None:
            lines.append(f"content-length: {length}")
        elif framing is Framing.CLOSE:
            lines.append("connection: close")
        if how.trailers:
            lines.append("trailer: " + ", ".join(name for name, _ in how.trailers))
        lines += [f"{name}: {value}" for name, value in how.headers]
        self._keep = framing not in (Framing.CLOSE, Framing.HTTP10)
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def _frame(self, data: bytes) -> bytes:
        self._request.answer += data
        if self._chunked:
            return b"%x\r\n%b\r\n" % (len(data), data)
        return data

    async def _end(self) -> bool:
        # set before the peer can know: it may look at once
        self._request.complete = True
        if self._chunked:
            trailers = "".join(f"{name}: {value}\r\n" for name, value in self._how.trailers)
            await self._write(b"0\r\n" + trailers.encode() + b"\r\n")
        self._wire.progressed()
        return self._keep

    async def _write(self, data: bytes) -> None:
        write, size = self._wire.transport.write, self._how.segment
        if size is None:
            write(data)
            return
        for at in range(0, len(data), size):
            write(data[at : at + size])
            await asyncio.sleep(0.0002)  # else the kernel may join them again
