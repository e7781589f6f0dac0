"""An engine without work, a Redis, and gateways as they are asked for."""

from __future__ import annotations

import random
import string
import sys
from pathlib import Path
from typing import Any

from loadtests.chaos.gateway import Gateway
from loadtests.process import HOST, Processes, free_ports
from loadtests.replicas.servers import Server
from loadtests.replicas.site import open_gateway


class Ground:
    """
    Args:
        url: of a Redis that is there; one is started when there is none.
        shared: whether the gateways are told of it.

    Attributes:
        redis: the one that was started; None where there is none, or another.
    """

    def __init__(
        self, processes: Processes, directory: Path, url: str | None, shared: bool
    ) -> None:
        self.processes = processes
        self.redis: Server | None = None
        (port,) = free_ports(1)
        self._directory = directory
        self._engine = f"http://{HOST}:{port}"
        command = [sys.executable, "-m", "loadtests.replicas.instant", f"{port}"]
        processes.start("engine", command).wait_ready(port, "/health")
        self._section: dict[str, Any] | None = None
        if shared:
            if url is None:
                self.redis = Server(processes, directory)
                url = self.redis.url
            self._section = {"url": url, "namespace": f"propagation-{port}"}

    def gateway(self) -> Gateway:
        return open_gateway(self.processes, self._directory, [self._engine], self._section)


def text(dice: random.Random, size: int) -> str:
    return "".join(dice.choices(string.ascii_lowercase, k=size))
