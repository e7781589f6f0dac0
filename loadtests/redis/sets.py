"""Several real Redis servers that know of each other: a cluster, and a pair with Sentinels."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

from loadtests.process import HOST
from loadtests.redis.server import RedisServer

_BUS = 10_000
"""How far a node's port for the others is from the one for clients."""
SLOTS = 16_384


def until(what: str, holds: Callable[[], bool], timeout: float = 20.0) -> None:
    """Wait for something that comes by itself."""
    deadline = time.monotonic() + timeout
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


class _Set(ABC):
    """Started as a whole on entry, stopped at the end."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @abstractmethod
    def _start(self, stack: contextlib.ExitStack) -> None:
        """Start all servers, and wait until they know each other.

        Args:
            stack: stops those that were entered into it.
        """


class RedisCluster(_Set):
    """Three nodes without replicas, which hold a third of the slots each.

    Attributes:
        nodes: in the order of their slots.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [
            RedisServer(
                port=cluster_port(),
                cluster_enabled="yes",
                cluster_node_timeout=1000,
                # a slot without a node is no reason to refuse the others
                cluster_require_full_coverage="no",
            )
            for _ in range(3)
        ]

    @property
    def url(self) -> str:
        return "redis://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    @property
    def settings(self) -> dict[str, str]:
        """A gateway's section `redis`."""
        return {"url": self.url}

    def _start(self, stack: contextlib.ExitStack) -> None:
        for node in self.nodes:
            stack.enter_context(node)
        first, *others = self.nodes
        for number, node in enumerate(self.nodes):
            slots = range(SLOTS * number // 3, SLOTS * (number + 1) // 3)
            node.command("CLUSTER", "ADDSLOTS", *map(str, slots))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
        for node in others:
            node.command("CLUSTER", "MEET", HOST, str(first.port))
        until("the nodes agree", lambda: all(map(_is_ready, self.nodes)))

    def owner(self, key: bytes) -> RedisServer:
        """Who answers for a key."""
        name = key.decode()
        [node] = [
            each
            for each in self.nodes
            if not (each.command("GET", name) or b"").startswith((b"-MOVED", b"-ASK"))
        ]
        return node

    def slot(self, key: bytes) -> int:
        reply = self.nodes[0].command("CLUSTER", "KEYSLOT", key.decode())
        assert reply is not None
        return int(reply[1:])

    def begin_move(self, key: bytes, to: RedisServer) -> RedisServer:
        """Have a key's slot on its way: what it does not hold yet is asked for at `to`.

        Returns:
            Who has it still.
        """
        owner, slot = self.owner(key), str(self.slot(key))
        to.command("CLUSTER", "SETSLOT", slot, "IMPORTING", _id(owner))
        owner.command("CLUSTER", "SETSLOT", slot, "MIGRATING", _id(to))
        return owner

    def end_move(self, key: bytes, owner: RedisServer, to: RedisServer) -> None:
        """Carry the slot's keys over, and tell all nodes."""
        slot = str(self.slot(key))
        for name in _strings(owner.command("CLUSTER", "GETKEYSINSLOT", slot, "1000")):
            owner.command("MIGRATE", HOST, str(to.port), name, "0", "5000")
        for node in (to, owner, *self.nodes):
            node.command("CLUSTER", "SETSLOT", slot, "NODE", _id(to))


class RedisSentinels(_Set):
    """A primary, a replica, and Sentinels that watch them under the name `SERVICE`.

    Attributes:
        servers: those that were the primary and the replica at first.
    """

    SERVICE = "gateway"

    def __init__(self, sentinels: int = 1, **options: Any) -> None:
        super().__init__()
        options |= {"repl_diskless_sync_delay": 0}
        primary = RedisServer(**options)
        replica = RedisServer(replicaof=f"{HOST} {primary.port}", **options)
        self.servers = [primary, replica]
        self.sentinels = [
            RedisServer(
                sentinel=[
                    f"monitor {self.SERVICE} {HOST} {primary.port} {sentinels // 2 + 1}",
                    f"down-after-milliseconds {self.SERVICE} 300",
                    f"failover-timeout {self.SERVICE} 1000",
                ]
            )
            for _ in range(sentinels)
        ]

    @property
    def url(self) -> str:
        return "redis://" + ",".join(f"{HOST}:{each.port}" for each in self.sentinels)

    @property
    def settings(self) -> dict[str, str]:
        """A gateway's section `redis`."""
        return {"url": self.url, "sentinel_service": self.SERVICE}

    def _start(self, stack: contextlib.ExitStack) -> None:
        for server in self.servers:
            stack.enter_context(server)
        replica = self.servers[1]
        up = b"master_link_status:up"
        until("the replica follows", lambda: up in (replica.command("INFO") or b""))
        for sentinel in self.sentinels:
            stack.enter_context(sentinel)
        known = "the Sentinels know the replica"
        until(known, lambda: all(map(_could_fail_over, self.sentinels)))

    @property
    def primary(self) -> RedisServer:
        """Who that is now, as the first Sentinel has it."""
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)
        _, port = _strings(self.sentinels[0].command(*words))
        [server] = [each for each in self.servers if each.port == int(port)]
        return server

    def fail_over(self) -> None:
        """By hand, with both servers well; returns once the first Sentinel names the other one."""
        before = self.primary
        words = ("SENTINEL", "FAILOVER", self.SERVICE)
        until("a failover", lambda: self.sentinels[0].command(*words) == b"+OK\r\n")
        until("another primary", lambda: self.primary is not before)

    def lose_primary(self) -> RedisServer:
        """As a crash; the Sentinels are left to find out. Returns who it was."""
        lost = self.primary
        lost.kill()
        return lost

    def bring_back(self, lost: RedisServer) -> None:
        """As a replica of who is the primary now, once that could fail as well."""
        lost.options["replicaof"] = f"{HOST} {self.primary.port}"
        lost.start()
        until("the Sentinels know the replica", lambda: all(map(_could_fail_over, self.sentinels)))


def cluster_port() -> int:
    """A free port for a node; that for its bus is free as well."""
    while True:
        port = random.randrange(20_000, 1 << 15)
        with contextlib.suppress(OSError), socket.socket() as client, socket.socket() as bus:
            client.bind((HOST, port))
            bus.bind((HOST, port + _BUS))
            return port


def _is_ready(node: RedisServer) -> bool:
    info = node.command("CLUSTER", "INFO") or b""
    facts = (f"cluster_slots_ok:{SLOTS}", "cluster_known_nodes:3", "cluster_state:ok")
    return all(f"{fact}\r".encode() in info for fact in facts)


def _could_fail_over(sentinel: RedisServer) -> bool:
    """Whether it has heard of the replica from the replica itself."""
    reply = sentinel.command("SENTINEL", "REPLICAS", RedisSentinels.SERVICE) or b""
    return b"master-link-status\r\n$2\r\nok\r\n" in reply


def _id(node: RedisServer) -> str:
    [name] = _strings(node.command("CLUSTER", "MYID"))
    return name


def _strings(reply: bytes | None) -> list[str]:
    """The bulk strings of a raw reply."""
    assert reply is not None
    return [part.decode() for part in reply.split(b"\r\n") if part and part[:1] not in b"$*"]
