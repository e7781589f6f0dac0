"""An HTTP client on a bare socket: it sees an answer's exact bytes, framing and end."""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.harness import sse


class End(StrEnum):
    """How an answer's body ended."""

    FRAMED = "framed"
    """By its own framing: all chunks and the last one, or all bytes that were announced."""
    CLOSED = "closed"
    """With the connection, and nothing said where it should end."""
    BROKEN = "broken"
    """With the connection, before its framing said so."""
    RESET = "reset"


@dataclass(slots=True)
class Answer:
    """An answer, or as much of it as has been read.

    Attributes:
        headers: in order, names in lower case.
        body: with the chunk framing taken off.
        chunks: the chunks' sizes, when there are any.
        end: None as long as more may come.
    """

    status: int = 0
    version: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    chunks: list[int] = field(default_factory=list)
    trailers: list[str] = field(default_factory=list)
    end: End | None = None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def header(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def stream(self) -> sse.Stream:
        return sse.read(self.body)


class RawClient:
    """One connection. Usable as a context manager.

    Args:
        timeout: seconds until a read that gets nothing raises TimeoutError.
        headers: of every request, but for what `send` sends.
    """

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        timeout: float = 20.0,
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        self._headers = tuple(headers)
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._end: End | None = None

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def request(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "POST",
        headers: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Args:
        body: sent as it is if it is bytes, else as JSON.
        headers: may name another host.
        """
        headers = tuple(headers)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1"]
        if all(name != "host" for name, _ in headers):
            lines.append("host: gateway.test")
        lines += [f"{name}: {value}" for name, value in (*self._headers, *headers)]
        if body is not None:
            lines += ["content-type: application/json", f"content-length: {len(data)}"]
        self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + (data if body else b""))

    def answer(self, until: Callable[[Answer], bool] | None = None) -> Answer:
        """Read an answer to its end, or until `until` says that it is enough.

        1xx answers are skipped.
        """
        answer = Answer()
        while True:
            parsed = parse(self._buffer, self._end)
            if parsed is not None:
                answer, rest = parsed
                if answer.end is not None:
                    self._buffer = rest
                    return answer
                if until is not None and until(answer):
                    return answer
            if self._end is not None:
                answer.end = self._end if answer.end is None else answer.end
                return answer
            self._receive()

    def exchange(self, path: str, body: Any = None, **options: Any) -> Answer:
        self.request(path, body, **options)
        return self.answer()

    def events(self, count: int) -> Answer:
        """Read until so many whole events have come."""
        return self.answer(lambda answer: len(answer.stream.events) >= count)

    def has_answer(self) -> bool:
        """Whether anything has come that was not read yet."""
        return bool(select.select([self._socket], [], [], 0.0)[0])

    def closed_by_peer(self) -> bool:
        """Wait for the peer to close the connection; False when bytes come instead."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        """Close with a RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def half_close(self) -> None:
        """Close for writing alone."""
        self._socket.shutdown(socket.SHUT_WR)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except ConnectionResetError:
            self._end = End.RESET
            return
        if data:
            self._buffer += data
        else:
            self._end = End.BROKEN


def parse(data: bytes, end: End | None = None) -> tuple[Answer, bytes] | None:
    """An answer, as far as it has come, and what came after it; None before its head is whole.

    1xx answers are skipped.

    Args:
        end: how the connection ended, if it has.
    """
    head, blank, rest = data.partition(b"\r\n\r\n")
    if not blank:
        return None
    line, *lines = head.decode("latin-1").split("\r\n")
    version, status, *_ = line.split(" ", 2)
    answer = Answer(int(status), version)
    for text in lines:
        name, _, value = text.partition(":")
        answer.headers.append((name.lower(), value.strip()))
    if answer.status < 200:
        return parse(rest, end)
    length = answer.header("content-length")
    if "chunked" in (answer.header("transfer-encoding") or ""):
        return answer, _dechunk(answer, rest)
    if answer.status in (204, 304):
        answer.end = End.FRAMED
        return answer, rest
    if length is None:
        answer.body = rest
        if end is End.BROKEN:
            answer.end = End.CLOSED
        return answer, b""
    answer.body = rest[: int(length)]
    if len(answer.body) == int(length):
        answer.end = End.FRAMED
    return answer, rest[int(length) :]


def _dechunk(answer: Answer, data: bytes) -> bytes:
    parts = []
    while True:
        line, found, rest = data.partition(b"\r\n")
        if not found:
            break
        size = int(line.partition(b";")[0], 16)
        if size == 0:
            fields, _, after = (b"\r\n" + rest).partition(b"\r\n\r\n")
            if rest.startswith(b"\r\n") or _:
                answer.trailers = [t.decode() for t in fields.split(b"\r\n") if t]
                answer.end = End.FRAMED
                data = after
            break
        if len(rest) < size + 2:
            # An unfinished chunk: its bytes have been delivered, the chunk has not.
            parts.append(rest[:size])
            break
        answer.chunks.append(size)
        parts.append(rest[:size])
        data = rest[size + 2 :]
    answer.body = b"".join(parts)
    return data
