"""The gateway and its engines, as processes; and what the gateway says about them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import msgspec

from gateway.admin.views import BackendView, IndexView
from gateway.fleet.backend import BackendState
from loadtests.process import HOST, ProcessError, Processes, Service, free_ports

_ENGINE = Path(__file__).with_name("engine")
_SLOWEST_START = 300.0
_NOTICE = 60.0
_POLL = 0.2


class Engine:
    """An engine of ours: started with the script beside this file, stopped by its process id."""

    def __init__(self, processes: Processes, folder: Path, number: int) -> None:
        self._processes = processes
        self._folder = folder
        self._name = f"engine {number}"
        (self._port,) = free_ports(1)
        self.url = f"http://{HOST}:{self._port}"
        self._service = self._launch()

    def wait_ready(self) -> None:
        """
        Raises:
            ProcessError: it ended, or took too long.
        """
        self._service.wait_ready(self._port, "/health", seconds=_SLOWEST_START)

    def stop(self) -> None:
        self._processes.stop(self._service)

    def start_again(self) -> None:
        """Another process at the same address."""
        self._service = self._launch()
        self.wait_ready()

    def _launch(self) -> Service:
        command = [str(_ENGINE), str(self._folder), str(self._port)]
        return self._processes.start(self._name, command)


class Gateway:
    """A running gateway, seen through its admin API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://{HOST}:{port}"
        self._client = httpx.Client(base_url=self.url, trust_env=False)

    def backends(self) -> list[BackendView]:
        page = self._client.get("/admin/v1/backends").raise_for_status()
        return msgspec.json.decode(page.content, type=list[BackendView])

    def index(self) -> IndexView:
        page = self._client.get("/admin/v1/index").raise_for_status()
        return msgspec.json.decode(page.content, type=IndexView)

    def wait_until(self, backend: str, state: BackendState) -> float:
        """Returns:
            How long it took, seconds.

        Raises:
            ProcessError: it takes too long.
        """
        start = time.monotonic()
        while True:
            waited = time.monotonic() - start
            if any(view.id == backend and view.state is state for view in self.backends()):
                return waited
            if waited > _NOTICE:
                raise ProcessError(f"backend {backend} is not {state} after {waited:.0f} s")
            time.sleep(_POLL)

    def close(self) -> None:
        self._client.close()


@contextlib.contextmanager
def gateway(processes: Processes, policy: str, engines: Sequence[str]) -> Iterator[Gateway]:
    """A gateway before engines at these URLs, with empty memory."""
    (port,) = free_ports(1)
    backends = [f"--backend={url}" for url in engines]
    options = ["--port", f"{port}", "--policy", policy, *backends]
    service = processes.start("gateway", [sys.executable, "-m", "gateway.cli", "serve", *options])
    service.wait_ready(port, "/ready", expect=b'"healthy":%d' % len(engines))
    running = Gateway(port)
    try:
        yield running
    finally:
        running.close()
        processes.stop(service)
