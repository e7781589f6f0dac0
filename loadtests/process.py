"""Real processes on loopback: started, waited for, and stopped whatever happens."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
_PORTS = range(20_000, 32_000)
"""Below what systems give to outgoing connections, so that none takes a port just found free."""
_POLL = 0.05
_GRACES = (0.5, 5.0)
_TAIL = 15


class ProcessError(RuntimeError):
    """A process ended on its own or did not get ready; the message ends with its last output."""


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nothing listens on now, for test processes side by side from a
    share of each."""
    found: list[int] = []
    place, shares = share()
    ports = _PORTS[place::shares]
    for port in random.sample(ports, len(ports)):
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ProcessError(f"fewer than {count} free ports between {_PORTS.start} and {_PORTS.stop}")


def share() -> tuple[int, int]:
    """Which of the test processes this is, and how many there are."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return int(worker), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


@dataclass(slots=True, frozen=True)
class Service:
    """A started process, which leads a process group of its own."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """
        Raises:
            ProcessError: it has ended.
        """
        code = self.process.poll()
        if code is not None:
            raise ProcessError(f"{self.name} ended with code {code}{self._tail()}")

    def wait_ready(
        self, port: int, path: str, *, expect: bytes = b"", seconds: float = 30.0
    ) -> None:
        """Wait until GET `path` answers 200 with `expect` in its body.

        Raises:
            ProcessError: it ended, or took longer.
        """
        deadline = time.monotonic() + seconds
        while not answers(port, path, expect):
            self.check()
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.name} is not ready after {seconds:g} s{self._tail()}")
            time.sleep(_POLL)

    def ask_to_stop(self) -> None:
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask the process to end, twice because a gateway gives its clients time after the first
        signal; then end its whole group by force."""
        try:
            for grace in _GRACES:
                self.ask_to_stop()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(grace)
                    break
        finally:
            self._signal(signal.SIGKILL)
            self.process.wait()

    def kill(self) -> None:
        """End its whole group at once, without a word."""
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):  # macOS: the latter for a group of zombies
            return

    def _tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
        return "".join(f"\n    {line}" for line in lines)


class Processes:
    """A context in which processes are started; leaving it stops them, newest first."""

    def __init__(self) -> None:
        self._services: list[Service] = []
        self._started = 0

    def __enter__(self) -> Self:
        self._logs = tempfile.TemporaryDirectory(prefix="prefixgate-")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for service in self._services:
            service.ask_to_stop()  # all at once: they end side by side
        try:
            while self._services:
                self._services.pop().stop()
        finally:
            self._logs.cleanup()

    def start(self, name: str, command: Sequence[str]) -> Service:
        """Start a process with its output in a log file of its own.

        Raises:
            ProcessError: there is no such program.
        """
        log = Path(self._logs.name) / f"{self._started}.log"
        self._started += 1
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise ProcessError(f"{name} cannot be started: {error}") from None
        service = Service(name, process, log)
        self._services.append(service)
        return service

    def stop(self, service: Service) -> None:
        """Stop one before the others."""
        self._services.remove(service)
        service.stop()

    def kill(self, service: Service) -> None:
        """End one as a crash would."""
        self._services.remove(service)
        service.kill()

    def check(self) -> None:
        """
        Raises:
            ProcessError: one of them has ended.
        """
        for service in self._services:
            service.check()


def answers(port: int, path: str, expect: bytes = b"") -> bool:
    """Whether GET `path` at a loopback port answers 200 with `expect` in its body."""
    connection = http.client.HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status == 200 and expect in response.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
