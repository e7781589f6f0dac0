"""A port whose accept queue is full: connecting to it hangs until the caller gives up."""

from __future__ import annotations

import contextlib
import socket
from types import TracebackType


class FullListener:
    """Usable as a context manager.

    Args:
        port: where to listen.
    """

    def __init__(self, port: int) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(0)
        self._filling: list[socket.socket] = []
        # A backlog of 0 still takes a connection or two; once one hangs, all that follow do.
        for _ in range(4):
            connecting = socket.socket()
            connecting.settimeout(0.2)
            self._filling.append(connecting)
            with contextlib.suppress(TimeoutError):
                connecting.connect(("127.0.0.1", port))

    def close(self) -> None:
        for connecting in self._filling:
            connecting.close()
        self._listener.close()

    def __enter__(self) -> FullListener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
