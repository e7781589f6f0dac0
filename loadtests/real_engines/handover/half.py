"""One of the two engines: started if it is ours, and seen through a tap."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from gateway.types import Role
from loadtests.process import HOST, ProcessError, Processes, Service, free_ports
from loadtests.real_engines.handover.reading import Reading, read
from loadtests.real_engines.handover.tap import Tap

CONNECTORS = {"nixl_pull": "NixlConnector", "nixl_push": "NixlPushConnector"}
"""By the gateway's name for the protocol, what vLLM calls it."""

_ENGINE = Path(__file__).with_name("engine")
_SLOWEST_START = 300.0
_SETTLED = 20.0
"""Seconds until nothing may be held any more; less than NIXL's lease of 30, which frees all."""
_POLL = 0.2


class Half:
    """A prefill or decode engine.

    Args:
        url: http://HOST:PORT.
        command: by which it is started; None for one that runs.

    Attributes:
        tap: through which the gateway goes.
        entry: what the gateway's config says of it.
    """

    def __init__(
        self, processes: Processes, role: Role, url: str, command: Sequence[str] | None
    ) -> None:
        self._processes = processes
        self._command = command
        self.role = role
        self.url = url
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or HOST, parts.port or 80
        self.tap = Tap(self._host, self._port)
        self.entry: dict[str, object] = {"url": self.tap.url, "role": role.value}
        self._service: Service | None = None
        if command is not None:
            self._service = processes.start(f"{role} engine", command)

    @property
    def ours(self) -> bool:
        return self._command is not None

    def describe(self, engine_id: str, side_channel_port: int) -> None:
        """Say in the gateway's config what the engine was started with."""
        self.entry["transfer"] = {
            "host": self._host,
            "engine_id": engine_id,
            "side_channel_port": side_channel_port,
        }

    def wait_ready(self) -> None:
        """
        Raises:
            ProcessError: it ended, or took too long.
        """
        if self._service is not None:
            self._service.wait_ready(self._port, "/health", seconds=_SLOWEST_START)

    def kill(self) -> None:
        """End it as a crash would."""
        if self._service is not None:
            self._processes.kill(self._service)

    def start_again(self) -> None:
        """Another process at the same address."""
        assert self._command is not None
        self._service = self._processes.start(f"{self.role} engine", self._command)
        self.wait_ready()

    def read(self) -> Reading:
        return read(self.url)

    def wait_idle(self) -> float | None:
        """Returns:
        Seconds until it holds and does nothing; None when that takes too long.
        """
        start = time.monotonic()
        while not self.read().idle:
            if time.monotonic() - start > _SETTLED:
                return None
            time.sleep(_POLL)
        return time.monotonic() - start

    def wait_held(self) -> float:
        """Wait until something of its KV cache is in use.

        Returns:
            The share that is.

        Raises:
            ProcessError: it takes too long.
        """
        deadline = time.monotonic() + _SETTLED
        while not (used := self.read().used):
            if time.monotonic() > deadline:
                raise ProcessError(f"the {self.role} engine never tells that it holds anything")
            time.sleep(_POLL)
        return used


def ours(processes: Processes, role: Role, folder: Path, connector: str) -> Half:
    """One that is started with the script beside this file."""
    port, side = free_ports(2)
    command = [f"{_ENGINE}", f"{folder}", f"{port}", f"{side}", role.value, CONNECTORS[connector]]
    half = Half(processes, role, f"http://{HOST}:{port}", command)
    if connector == "nixl_push" and role is Role.PREFILL:
        half.describe(f"{role}-{side}", side)
    return half


def theirs(processes: Processes, role: Role, url: str, command: str | None) -> Half:
    """One of the user's."""
    return Half(processes, role, url, None if command is None else shlex.split(command))
