"""A gateway before a prefill and a decode engine."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from gateway.fleet.backend import BackendState
from gateway.types import Role
from loadtests.process import ProcessError, Processes, free_ports
from loadtests.real_engines.fleet import Gateway
from loadtests.real_engines.handover.half import Half

LEAST = 512
"""Prompt tokens that the decode engine lacks, from which on a request is to be handed over."""
INTERVAL = 1.0
_NOTICE = 60.0


class Site:
    """
    Attributes:
        prefill, decode: the engines.
        prefill_id, decode_id: what the gateway calls them.
        model: that both serve.
    """

    def __init__(self, front: Gateway, prefill: Half, decode: Half, model: str | None) -> None:
        self.front = front
        self.prefill = prefill
        self.decode = decode
        views = {view.url: view for view in front.backends()}
        self.prefill_id = views[prefill.tap.url].id
        self.decode_id = views[decode.tap.url].id
        self.model = model or views[decode.tap.url].models[0]
        self.block = views[decode.tap.url].block_size or 1

    @property
    def url(self) -> str:
        return self.front.url

    def wait_prefill(self, state: BackendState) -> float:
        """Returns:
        How long it took the gateway to see the prefill engine so, seconds.
        """
        return self.front.wait_until(self.prefill_id, state)


@contextlib.contextmanager
def site(
    processes: Processes, connector: str, halves: tuple[Half, Half], model: str | None
) -> Iterator[Site]:
    """Args:
    halves: the prefill and the decode engine, which are ready.
    """
    (port,) = free_ports(1)
    tree = {
        "server": {"port": port},
        "backends": [half.entry for half in halves],
        "disagg": {"connector": connector, "min_uncached_tokens": LEAST},
        "health": {"interval": INTERVAL},
    }
    with tempfile.TemporaryDirectory(prefix="prefixgate-") as folder:
        config = Path(folder) / "gateway.yaml"
        config.write_text(yaml.safe_dump(tree), encoding="utf-8")
        command = [sys.executable, "-m", "gateway.cli", "serve", "--config", f"{config}"]
        service = processes.start("gateway", command)
        service.wait_ready(port, "/ready")
        front = Gateway(port)
        try:
            _wait_healthy(front)
            yield Site(front, *halves, model)
        finally:
            front.close()
            processes.stop(service)


def _wait_healthy(front: Gateway) -> None:
    deadline = time.monotonic() + _NOTICE
    while True:
        states = {view.role: view.state for view in front.backends() if view.models}
        if all(states.get(role) is BackendState.HEALTHY for role in (Role.PREFILL, Role.DECODE)):
            return
        if time.monotonic() > deadline:
            raise ProcessError(f"the gateway does not find both engines healthy: {states}")
        time.sleep(0.1)
