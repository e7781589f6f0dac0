"""Everything that can be wrong with Redis, while two gateways serve a steady load.

A third gateway without Redis takes requests in turn with them, and what is told is the difference
between it and them in the same seconds: what else the machine has to do meets all three. The
engines have no work of their own, so that a millisecond shows.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import uvloop

from loadtests.chaos.gateway import Gateway
from loadtests.client import Client
from loadtests.process import HOST, Processes
from loadtests.redis.server import RedisServer
from loadtests.redis.sets import RedisCluster, RedisSentinels, until
from loadtests.replicas.ground import Ground, text
from loadtests.replicas.servers import SlowServer
from loadtests.replicas.site import CHAT, ask, matched
from loadtests.replicas.steady import PREFIX_BYTES, Steady

STRETCH = 5.0
"""Seconds of a fault, at least."""
WARM = 3.0
REPEATS = 6
"""The lowest and the highest of six lie on both sides of the true median in 97 of 100 cases."""
PATIENCE = 20.0
"""Seconds after which nothing is taken to be shared any more."""
_LATEST = 0.5
"""Seconds in which one prefix must get to the other gateway, before another is tried."""
_POLL = 0.02
_KEY = b"{prefixgate:prefixgate}"
"""Hashes to the slot that all keys of the gateways lie in."""


@dataclass(slots=True, frozen=True)
class Fault:
    """
    Attributes:
        make: starts the Redis.
        begin: does it, to what `make` made.
        end: undoes it, and returns when Redis is well again. It is given what `begin` returned.
        heal: makes it possible to do it once more, likewise.
        lasts: whether it stays for a stretch before it is undone.
    """

    name: str
    make: Callable[[], AbstractContextManager[Any]]
    begin: Callable[[Any], object]
    end: Callable[[Any, Any], object]
    heal: Callable[[Any, Any], object] = lambda server, begun: None
    lasts: bool = True


def _nothing(*what: Any) -> None:
    pass


def _configure(server: RedisServer, name: str, value: str) -> None:
    server.command("CONFIG", "SET", name, value)


def _out_of_memory(server: RedisServer) -> None:
    _configure(server, "maxmemory-policy", "noeviction")
    _configure(server, "maxmemory", "1")


def _in_memory(server: RedisServer, begun: None) -> None:
    _configure(server, "maxmemory", "0")


def _read_only(server: RedisServer) -> None:
    server.command("REPLICAOF", HOST, "1")  # nobody listens there


def _well(server: RedisServer, begun: None) -> None:
    server.command("REPLICAOF", "NO", "ONE")


def _flush(server: RedisServer) -> None:
    server.command("FLUSHALL")


def _promoted(servers: RedisSentinels, lost: RedisServer) -> None:
    until("another primary", lambda: servers.primary is not lost)


def _move(cluster: RedisCluster) -> None:
    nodes = cluster.nodes
    to = nodes[(nodes.index(cluster.owner(_KEY)) + 1) % len(nodes)]
    cluster.end_move(_KEY, cluster.begin_move(_KEY, to), to)


def _sentinels() -> RedisSentinels:
    return RedisSentinels(sentinels=3)


FAULTS = (
    Fault("none", RedisServer, _nothing, _nothing),
    Fault("refused", RedisServer, RedisServer.kill, lambda server, _: server.start()),
    Fault("frozen", RedisServer, RedisServer.freeze, lambda server, _: server.resume()),
    Fault("3 s slow", SlowServer, SlowServer.slow, lambda server, _: server.fast()),
    Fault("read-only", RedisServer, _read_only, _well),
    Fault("out of memory", RedisServer, _out_of_memory, _in_memory),
    Fault("flushed", RedisServer, _flush, _nothing, lasts=False),
    Fault("restarted empty", RedisServer, RedisServer.restart, _nothing, lasts=False),
    Fault(
        "failed over by Sentinel",
        _sentinels,
        RedisSentinels.lose_primary,
        _promoted,
        RedisSentinels.bring_back,
        lasts=False,
    ),
    Fault("cluster slot moved", RedisCluster, _move, _nothing, lasts=False),
)


@dataclass(slots=True, frozen=True)
class Row:
    """
    Attributes:
        failures: of requests, why.
        alone, amid: P99 of the answers' seconds amid each fault and until learning is shared
            again, through the gateway that has no Redis and through those that do.
        shared: seconds after Redis is well until what one gateway learns is known to the other,
            for each repeat; None where it never was.
    """

    fault: str
    requests: int
    failures: Sequence[str]
    alone: Sequence[float]
    amid: Sequence[float]
    shared: Sequence[float | None]

    @property
    def added(self) -> list[float]:
        """What each fault added to the P99."""
        return [amid - alone for amid, alone in zip(self.amid, self.alone, strict=True)]


def run(faults: Sequence[Fault] = FAULTS, repeats: int = REPEATS) -> list[Row]:
    """
    Raises:
        ProcessError: a process does not start.
    """
    return [_measure(fault, repeats) for fault in faults]


def _measure(fault: Fault, repeats: int) -> Row:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        server = stack.enter_context(fault.make())
        ground = Ground(stack.enter_context(Processes()), directory, server.settings)
        gateways = [ground.gateway(), ground.gateway()]
        alone = ground.gateway(shared=False)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_endure(fault, server, gateways, alone, repeats))


async def _endure(
    fault: Fault, server: Any, gateways: Sequence[Gateway], alone: Gateway, repeats: int
) -> Row:
    load = Steady([*gateways, alone])
    sending = asyncio.create_task(load.send())
    stretches: list[tuple[float, float]] = []
    shared: list[float | None] = []
    first, second = gateways
    try:
        await asyncio.sleep(WARM)
        for _ in range(repeats):
            await time_to_share(first, second)
            begun = time.monotonic()
            state = await asyncio.to_thread(fault.begin, server)
            if fault.lasts:
                await asyncio.sleep(STRETCH)
            await asyncio.to_thread(fault.end, server, state)
            shared.append(await time_to_share(first, second))
            await asyncio.sleep(max(0.0, begun + STRETCH - time.monotonic()))
            stretches.append((begun, time.monotonic()))
            await asyncio.to_thread(fault.heal, server, state)
    finally:
        load.stop()
        await sending
    return Row(
        fault.name,
        len(load.answers),
        load.failures(),
        [load.p99([alone], begun, ended) for begun, ended in stretches],
        [load.p99(gateways, begun, ended) for begun, ended in stretches],
        shared,
    )


async def time_to_share(first: Gateway, second: Gateway) -> float | None:
    """Seconds until what the first gateway learns is known to the second; None for never."""
    began, dice = time.monotonic(), random.Random()
    client = Client(HOST, first.port)
    try:
        while (sent := time.monotonic()) < began + PATIENCE:
            request = ask(text(dice, PREFIX_BYTES))
            await client.post(CHAT, msgspec.json.encode(request))
            look = partial(matched, second, request)
            while time.monotonic() < sent + _LATEST:
                if await asyncio.to_thread(look) > 0:
                    return time.monotonic() - began
                await asyncio.sleep(_POLL)
        return None
    finally:
        client.close()


MAX_ADDED = 1e-3
MAX_SHARED = 5.0


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| Redis | requests | failed | P99 without Redis | with it | added | of all repeats |"
        " under 1 ms | shared again after |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        times = [seconds for seconds in row.shared if seconds is not None]
        again = f"{max(times, default=nan):.2f} s" if len(times) == len(row.shared) else "never"
        added = row.added
        lines.append(
            f"| {row.fault} | {row.requests} | {len(row.failures)} |"
            f" {median(row.alone) * 1000:.1f} ms | {median(row.amid) * 1000:.1f} ms |"
            f" {median(added) * 1000:+.1f} ms |"
            f" {min(added) * 1000:+.1f} to {max(added) * 1000:+.1f} ms | {_verdict(row)} |"
            f" {again} |"
        )
    return "\n".join(lines)


def _verdict(row: Row) -> str:
    if len(row.added) < REPEATS:
        return "too few"
    if max(row.added) < MAX_ADDED:
        return "met"
    return "missed" if min(row.added) >= MAX_ADDED else "within noise"


def missed(rows: Sequence[Row]) -> list[str]:
    """What is not as it should be, a line each."""
    found = []
    for row in rows:
        if row.failures:
            found.append(f"{row.fault}: {len(row.failures)} requests failed: {row.failures[0]}")
        if _verdict(row) == "missed":
            found.append(f"{row.fault}: {median(row.added) * 1000:.1f} ms more at P99")
        if any(seconds is None or seconds > MAX_SHARED for seconds in row.shared):
            found.append(f"{row.fault}: learning is not shared again within {MAX_SHARED:g} s")
    return found
