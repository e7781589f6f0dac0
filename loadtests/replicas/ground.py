"""An engine without work, and gateways before it as they are asked for."""

from __future__ import annotations

import random
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtests.chaos.gateway import Gateway
from loadtests.process import HOST, Processes, free_ports
from loadtests.replicas.site import open_gateway


class Ground:
    """
    Args:
        redis: the gateways' section; None where they share nothing.
    """

    def __init__(
        self, processes: Processes, directory: Path, redis: Mapping[str, Any] | None
    ) -> None:
        self.processes = processes
        self._directory = directory
        self._redis = redis
        (port,) = free_ports(1)
        self._engine = f"http://{HOST}:{port}"
        command = [sys.executable, "-m", "loadtests.replicas.instant", f"{port}"]
        processes.start("engine", command).wait_ready(port, "/health")

    def gateway(self, *, shared: bool = True) -> Gateway:
        """One more; without Redis where it is not `shared`."""
        redis = self._redis if shared else None
        return open_gateway(self.processes, self._directory, [self._engine], redis)


def text(dice: random.Random, size: int) -> str:
    return "".join(dice.choices(string.ascii_lowercase, k=size))
