"""A client that is cheap enough to measure with: httptools on asyncio, streams read as bytes.

`Client.post` sends one streaming chat completion and times its answer at the socket: the clock is
read once when bytes arrive, before they are parsed.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import msgspec

_IDLE_LIMIT = 4.0
"""Seconds. uvicorn, and so vLLM, drops idle connections after five."""


@dataclass(slots=True)
class Answer:
    """What came back. Times are the event loop's, in seconds.

    Attributes:
        status: HTTP status; 0 when there was no answer.
        sent, first, last, ended: the request was written; the first and the last content arrived
            (None when there was none); the answer ended.
        text: all content.
        pieces: how many events brought content.
        usage: the engine's own counts; None when it sent none.
        error: why the request failed; None when it did not.
    """

    sent: float
    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None
    ended: float = 0.0
    text: str = ""
    pieces: int = 0
    usage: Usage | None = None
    error: str | None = None

    @property
    def output_tokens(self) -> int:
        return self.pieces if self.usage is None else self.usage.completion_tokens

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.sent

    @property
    def tpot(self) -> float | None:
        if self.first is None or self.last is None or self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.prompt_tokens_details
        return 0 if details is None else details.cached_tokens or 0


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: Usage | None = None
    error: Any = None


class ContentReader:
    """Fills an `Answer` from the bytes of an OpenAI chat stream, split anywhere."""

    __slots__ = ("_answer", "_decode", "_done", "_pieces", "_rest")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._decode = msgspec.json.Decoder(_Event).decode
        self._pieces: list[str] = []
        self._rest = b""
        self._done = False

    def feed(self, data: bytes, now: float) -> None:
        """
        Raises:
            msgspec.DecodeError: an event is not what an OpenAI server sends.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def finish(self) -> None:
        answer = self._answer
        answer.text = "".join(self._pieces)
        answer.pieces = len(self._pieces)
        if not self._done and answer.error is None:
            answer.error = "the stream ended without [DONE]"

    def _event(self, payload: bytes, now: float) -> None:
        answer = self._answer
        if payload == b"[DONE]":
            self._done = True
            return
        event = self._decode(payload)
        if event.error is not None:
            answer.error = f"error event: {event.error}"
        if event.usage is not None:
            answer.usage = event.usage
        for choice in event.choices:
            if choice.delta.content:
                self._pieces.append(choice.delta.content)
                answer.last = now
                if answer.first is None:
                    answer.first = now


class _Connection(asyncio.Protocol):
    """A keep-alive connection that carries one request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._now = 0.0
        self.idle_since = 0.0
        self.usable = False

    async def exchange(self, request: bytes) -> Answer:
        self._answer = Answer(sent=self._loop.time())
        self._reader: ContentReader | None = None
        self._body = bytearray()
        self._waiter = self._loop.create_future()
        self._transport.write(request)
        await self._waiter
        return self._answer

    def close(self) -> None:
        self.usable = False
        self._transport.close()

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self.usable = True

    def data_received(self, data: bytes) -> None:
        self._now = self._loop.time()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            # What a callback raised is the cause: an event that could not be read.
            self._end(f"unreadable answer: {error.__context__ or error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._now = self._loop.time()
        self._end(f"connection lost: {exc or 'closed by the server'}")

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        if self._answer.status == 200:
            self._reader = ContentReader(self._answer)

    def on_body(self, body: bytes) -> None:
        if self._reader is None:
            self._body += body
        else:
            self._reader.feed(body, self._now)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        answer = self._answer
        if answer.status != 200:
            answer.error = f"HTTP {answer.status}: {self._body[:500].decode('utf-8', 'replace')}"
        self._end(None)

    def _end(self, error: str | None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or waiter.done():
            return
        answer = self._answer
        answer.ended = self.idle_since = self._now
        answer.error = answer.error or error
        if self._reader is not None:
            self._reader.finish()
        waiter.set_result(None)


class Client:
    """Posts to one server over keep-alive connections, as many as there are requests at once.

    Args:
        timeout: seconds that one request may take from connecting to its last byte.
    """

    def __init__(self, host: str, port: int, *, timeout: float = 60.0) -> None:
        self._host = host
        self._port = port
        self._timeout = timeout
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes) -> Answer:
        """Send a streaming chat completion. What goes wrong is told in the answer's `error`."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        connection = None
        try:
            async with asyncio.timeout(self._timeout):
                connection = self._take(start) or await self._connect(loop)
                answer = await connection.exchange(self._request(path, body))
        except OSError as error:  # TimeoutError is one
            what = f"no answer in {self._timeout:g} s" if isinstance(error, TimeoutError) else error
            if connection is not None:
                connection.close()
            return Answer(sent=start, ended=loop.time(), error=f"{what}")
        except asyncio.CancelledError:
            if connection is not None:
                connection.close()
            raise
        if connection.usable:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take(self, now: float) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < _IDLE_LIMIT:
                return connection
            connection.close()
        return None

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        _, connection = await loop.create_connection(
            lambda: _Connection(loop), self._host, self._port
        )
        return connection

    def _request(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode("ascii") + body
