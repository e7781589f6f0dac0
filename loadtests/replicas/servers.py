"""A Redis behind a network that can be slow."""

from __future__ import annotations

import os
import signal
import socket
import sys
from types import TracebackType

from loadtests.process import HOST, Processes, Service, free_ports
from loadtests.redis.server import RedisServer
from loadtests.redis.sets import until

SECONDS = 3.0
"""For which every answer is held."""


class SlowServer:
    """A server that is reached by way of a process which can hold back what it says. A context
    manager."""

    def __init__(self) -> None:
        self._server = RedisServer()
        self._processes = Processes()
        (self._port,) = free_ports(1)
        self._network: Service

    @property
    def settings(self) -> dict[str, str]:
        return {"url": f"redis://{HOST}:{self._port}"}

    def __enter__(self) -> SlowServer:
        self._server.__enter__()
        self._processes.__enter__()
        words = [sys.executable, "-m", "loadtests.replicas.slow", f"{self._port}"]
        words += [f"{self._server.port}", f"{SECONDS}"]
        self._network = self._processes.start("slow network", words)
        until("the way through the slow network", self._answers)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._processes.__exit__(kind, error, trace)
        self._server.__exit__(kind, error, trace)

    def _answers(self) -> bool:
        try:
            with socket.create_connection((HOST, self._port), 1.0) as wire:
                wire.sendall(b"PING\r\n")
                return wire.recv(16) != b""
        except OSError:
            return False

    def slow(self) -> None:
        os.kill(self._network.process.pid, signal.SIGUSR1)

    def fast(self) -> None:
        os.kill(self._network.process.pid, signal.SIGUSR2)
