"""Redis as real processes: one server, one behind a slow network, Sentinels, a cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import redis
from redis.exceptions import RedisError

from loadtests.process import HOST, ProcessError, Processes, Service, free_ports

Settings = Mapping[str, Any]
"""A gateway's section `redis`."""

SERVICE = "main"
"""What the Sentinels call the primary."""
DOWN_AFTER = 1.0
"""Seconds of silence after which Sentinels take a server for dead."""
SLOTS = 16_384
_PATIENCE = 20.0
_POLL = 0.02


def until(true: Callable[[], bool], what: str, seconds: float = _PATIENCE) -> None:
    """
    Raises:
        ProcessError: it has not become true in so many seconds.
    """
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(RedisError):
            if true():
                return
        if time.monotonic() > deadline:
            raise ProcessError(f"redis: {what}: not after {seconds:g} s")
        time.sleep(_POLL)


def command(client: redis.Redis, *words: Any) -> Any:
    """Any command, with the reply as it comes."""
    run: Callable[..., Any] = client.execute_command
    return run(*words)


class Server:
    """One Redis process, empty whenever it starts.

    Args:
        directory: for its files.
        options: of its configuration, by name.
    """

    def __init__(self, processes: Processes, directory: Path, **options: Any) -> None:
        (self.port,) = free_ports(1)
        self.client = redis.Redis(HOST, self.port, socket_timeout=5.0)
        self._processes = processes
        self._directory = directory
        self._options = {"save": "", "appendonly": "no", "repl-diskless-sync-delay": 0, **options}
        self._service: Service
        self.start()

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    @property
    def settings(self) -> Settings:
        return {"url": self.url}

    def start(self) -> None:
        """
        Raises:
            ProcessError: it does not start, or there is no such program.
        """
        words = [_binary(), "--port", f"{self.port}", "--bind", HOST]
        words += ["--dir", str(self._directory)]
        for name, value in self._options.items():
            words += [f"--{name}", f"{value}"]
        self._service = self._processes.start(f"redis {self.port}", words)
        until(lambda: bool(self.client.ping()), "starting")

    def kill(self) -> None:
        """As a crash."""
        self.signal(signal.SIGKILL)
        self._service.process.wait()
        self._processes.stop(self._service)

    def restart(self) -> None:
        self.kill()
        self.start()

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self._service.process.pid, number)

    def memory(self) -> int:
        """Bytes that it uses."""
        return int(self.client.info("memory")["used_memory"])


class SlowServer(Server):
    """One that is reached by way of a process which can hold back what it says."""

    SECONDS = 3.0

    def __init__(self, processes: Processes, directory: Path) -> None:
        super().__init__(processes, directory)
        (self._way,) = free_ports(1)
        words = [sys.executable, "-m", "loadtests.replicas.slow", f"{self._way}"]
        words += [f"{self.port}", f"{self.SECONDS}"]
        self._proxy = processes.start("slow network", words)
        way = redis.Redis(HOST, self._way, socket_timeout=1.0)
        until(lambda: bool(way.ping()), "the way through the slow network")
        way.close()

    @property
    def settings(self) -> Settings:
        return {"url": f"redis://{HOST}:{self._way}"}

    def slow(self) -> None:
        os.kill(self._proxy.process.pid, signal.SIGUSR1)

    def fast(self) -> None:
        os.kill(self._proxy.process.pid, signal.SIGUSR2)


class Watched:
    """A primary and a copy of it, watched by three Sentinels."""

    def __init__(self, processes: Processes, directory: Path) -> None:
        self._primary = Server(processes, directory)
        copy = Server(processes, directory, replicaof=f"{HOST} {self._primary.port}")
        until(lambda: copy.client.info("replication")["master_link_status"] == "up", "copying")
        self._sentinels = free_ports(3)
        for port in self._sentinels:
            own = directory / f"sentinel-{port}.conf"
            own.write_text(
                f"port {port}\nbind {HOST}\ndir {directory}\n"
                f"sentinel monitor {SERVICE} {HOST} {self._primary.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER * 1000:.0f}\n"
                f"sentinel failover-timeout {SERVICE} 5000\n",
                encoding="utf-8",
            )
            processes.start(f"sentinel {port}", [_binary(), str(own), "--sentinel"])
        self._sentinel = redis.Redis(HOST, self._sentinels[0], socket_timeout=5.0)
        until(self._ready, "Sentinels that know each other and the copy")

    @property
    def settings(self) -> Settings:
        places = ",".join(f"{HOST}:{port}" for port in self._sentinels)
        return {"url": f"redis://{places}", "sentinel_service": SERVICE}

    def lose_primary(self) -> None:
        self._primary.kill()

    def wait_promoted(self) -> None:
        """Until the Sentinels name the copy as the primary."""
        until(lambda: self._named() != self._primary.port, "promoting")

    def _named(self) -> int:
        _, port = command(self._sentinel, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return int(port)

    def _ready(self) -> bool:
        told = command(self._sentinel, "SENTINEL", "MASTER", SERVICE)
        state = told if isinstance(told, dict) else dict(zip(told[::2], told[1::2], strict=True))
        known = {_text(name): _text(value) for name, value in state.items()}
        return known["num-other-sentinels"] == "2" and known["num-slaves"] == "1"


class Cluster:
    """Three primaries that share the slots."""

    def __init__(self, processes: Processes, directory: Path) -> None:
        self._nodes = []
        buses = free_ports(3)
        for bus in buses:
            options = {"cluster-enabled": "yes", "cluster-config-file": f"nodes-{bus}.conf"}
            self._nodes.append(Server(processes, directory, **options, **{"cluster-port": bus}))
        share = SLOTS // len(self._nodes) + 1
        for at, node in enumerate(self._nodes):
            first, last = at * share, min((at + 1) * share, SLOTS) - 1
            command(node.client, "CLUSTER", "ADDSLOTSRANGE", first, last)
        for node, bus in zip(self._nodes[1:], buses[1:], strict=True):
            command(self._nodes[0].client, "CLUSTER", "MEET", HOST, node.port, bus)
        until(lambda: all(map(self._whole, self._nodes)), "a whole cluster")

    @property
    def settings(self) -> Settings:
        return {"url": "redis://" + ",".join(f"{HOST}:{node.port}" for node in self._nodes)}

    def move_slot(self) -> None:
        """Move the slot that the gateways' keys lie in to another node, with all that is there."""
        source, slot = self._busy()
        target = self._nodes[(self._nodes.index(source) + 1) % len(self._nodes)]
        ids = [_text(command(node.client, "CLUSTER", "MYID")) for node in self._nodes]
        of = dict(zip(self._nodes, ids, strict=True))
        _cluster(target, "SETSLOT", slot, "IMPORTING", of[source])
        _cluster(source, "SETSLOT", slot, "MIGRATING", of[target])
        while keys := _cluster(source, "GETKEYSINSLOT", slot, 100):
            command(source.client, "MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
        for node in (target, source, *self._nodes):
            _cluster(node, "SETSLOT", slot, "NODE", of[target])

    def _busy(self) -> tuple[Server, int]:
        """The node and the slot in which there is something."""
        for node in self._nodes:
            for key in node.client.scan_iter(count=100):
                return node, int(_cluster(node, "KEYSLOT", key))
        return self._nodes[0], 0

    @staticmethod
    def _whole(node: Server) -> bool:
        state = _cluster(node, "INFO")
        known = state if isinstance(state, dict) else _fields(_text(state))
        return known["cluster_state"] == "ok" and int(known["cluster_known_nodes"]) == 3


def _cluster(node: Server, *words: Any) -> Any:
    return command(node.client, "CLUSTER", *words)


def _fields(text: str) -> dict[str, str]:
    lines = (line.partition(":") for line in text.split())
    return {name: value for name, _, value in lines}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else f"{value}"


def _binary() -> str:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        raise ProcessError("there is neither redis-server nor valkey-server on PATH")
    return found
