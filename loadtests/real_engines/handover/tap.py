"""What a gateway sends an engine, seen on its way, and held back when that is wanted."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from loadtests.process import HOST

_CHUNK = 65_536


class Post:
    """The next request with a body that goes through a tap.

    Attributes:
        seen: it came.
        closed: its connection was closed by the gateway.
    """

    def __init__(self, hold: bool) -> None:
        self.hold = hold
        self.seen = threading.Event()
        self.closed = threading.Event()


class Tap:
    """A port before an engine. Usable as a context manager.

    Args:
        host, port: of the engine.

    Attributes:
        url: where the gateway is to find the engine.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server((HOST, 0))
        self.url = f"http://{HOST}:{self._listener.getsockname()[1]}"
        self._expected: Post | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def expect(self, *, hold: bool = False) -> Post:
        """Watch for the next request with a body.

        Args:
            hold: never let it, or anything after it on its connection, through to the engine.
        """
        self._expected = Post(hold)
        return self._expected

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(near,), daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with near:
            try:
                far = socket.create_connection(self._target, timeout=10)
            except OSError:
                return  # as a port that nobody listens on looks from here on
            with far:
                far.settimeout(None)
                back = threading.Thread(target=_pump, args=(far, near), daemon=True)
                back.start()
                self._forward(near, far)
                back.join()

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        post: Post | None = None
        for data in _chunks(near):
            expected = self._expected
            if expected is not None and data.startswith(b"POST "):
                self._expected, post = None, expected
                post.seen.set()
            if post is not None and post.hold:
                continue
            try:
                far.sendall(data)
            except OSError:
                break
        if post is not None:
            post.closed.set()
        _end(far, socket.SHUT_RDWR)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _end(self._listener, socket.SHUT_RDWR)
        self._listener.close()


def _chunks(source: socket.socket) -> Iterator[bytes]:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            yield data


def _pump(source: socket.socket, target: socket.socket) -> None:
    for data in _chunks(source):
        try:
            target.sendall(data)
        except OSError:
            break
    _end(target, socket.SHUT_RDWR)


def _end(one: socket.socket, how: int) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(how)
