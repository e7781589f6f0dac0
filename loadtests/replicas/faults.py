"""Everything that can be wrong with Redis, while two gateways serve a steady load.

Each fault is made several times in one run, a calm stretch before each: what it adds to the P99 of
the answers is the difference of the two, and the median over the repeats. Then Redis is well again,
and the time is taken until what one gateway learns is known to the other.
"""

from __future__ import annotations

import asyncio
import random
import string
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import nan
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import uvloop

from loadtests.client import Client
from loadtests.process import HOST, Processes
from loadtests.replicas.servers import Cluster, Server, SlowServer, Watched, command
from loadtests.replicas.site import CHAT, Balancer, Site, ask, matched, open_site
from loadtests.summary import percentile

ENGINES = 2
SPEED = 50.0
KV_TOKENS = 1_000_000
RATE = 200.0
STRETCH = 5.0
"""Seconds of a calm stretch, and of a fault."""
WARM = 3.0
REPEATS = 3
PREFIXES = 50
PREFIX_BYTES = 1200
PATIENCE = 20.0
"""Seconds after which nothing is taken to be shared any more."""
_LATEST = 0.5
"""Seconds in which one prefix must get to the other gateway, before another is tried."""
_POLL = 0.02


@dataclass(slots=True, frozen=True)
class Fault:
    """
    Attributes:
        make: starts the Redis, in a directory of its own.
        begin: does it, to what `make` made.
        end: undoes it, and returns when Redis is well again.
        lasts: whether it stays for a stretch before it is undone.
    """

    name: str
    make: Callable[[Processes, Path], Any]
    begin: Callable[[Any], object]
    end: Callable[[Any], object]
    lasts: bool = True


def _nothing(server: Any) -> None:
    pass


def _configure(server: Server, name: str, value: str) -> None:
    command(server.client, "CONFIG", "SET", name, value)


def _out_of_memory(server: Server) -> None:
    _configure(server, "maxmemory-policy", "noeviction")
    _configure(server, "maxmemory", "1")


def _read_only(server: Server) -> None:
    command(server.client, "REPLICAOF", HOST, 1)  # nobody listens there


def _well(server: Server) -> None:
    command(server.client, "REPLICAOF", "NO", "ONE")


def _flush(server: Server) -> None:
    command(server.client, "FLUSHALL")


FAULTS = (
    Fault("none", Server, _nothing, _nothing),
    Fault("refused", Server, Server.kill, Server.start),
    Fault("frozen", Server, Server.freeze, Server.thaw),
    Fault("3 s slow", SlowServer, SlowServer.slow, SlowServer.fast),
    Fault("read-only", Server, _read_only, _well),
    Fault("out of memory", Server, _out_of_memory, lambda s: _configure(s, "maxmemory", "0")),
    Fault("flushed", Server, _flush, _nothing, lasts=False),
    Fault("restarted empty", Server, Server.restart, _nothing, lasts=False),
    Fault(
        "failed over by Sentinel",
        Watched,
        Watched.lose_primary,
        Watched.wait_promoted,
        lasts=False,
    ),
    Fault("cluster slot moved", Cluster, Cluster.move_slot, _nothing, lasts=False),
)


@dataclass(slots=True, frozen=True)
class Row:
    """
    Attributes:
        failed: requests that did.
        calm, amid: P99 of the answers' seconds in the calm stretches and amid the fault, medians
            over the repeats; `added` the median of the differences.
        shared: seconds after Redis is well until what one gateway learns is known to the other,
            for each repeat; None where it never was.
    """

    fault: str
    requests: int
    failed: int
    calm: float
    amid: float
    added: float
    shared: Sequence[float | None]


def run(faults: Sequence[Fault] = FAULTS, repeats: int = REPEATS) -> list[Row]:
    """
    Raises:
        ProcessError: a process does not start.
    """
    return [_measure(fault, repeats) for fault in faults]


def _measure(fault: Fault, repeats: int) -> Row:
    # Only one repeat can lose a primary that has one copy.
    times = 1 if fault.make is Watched else repeats
    with TemporaryDirectory() as name, Processes() as processes:
        server = fault.make(processes, Path(name))
        site = open_site(
            processes,
            Path(name),
            engines=ENGINES,
            gateways=2,
            redis=server.settings,
            speed=SPEED,
            kv_tokens=KV_TOKENS,
        )
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_endure(fault, server, site, times))


async def _endure(fault: Fault, server: Any, site: Site, repeats: int) -> Row:
    load = Steady(site)
    sending = asyncio.create_task(load.send())
    stretches: list[tuple[float, float]] = []
    shared: list[float | None] = []
    try:
        await asyncio.sleep(WARM)
        await time_to_share(site)
        for _ in range(repeats):
            calm = time.monotonic()
            await asyncio.sleep(STRETCH)
            begun = time.monotonic()
            await asyncio.to_thread(fault.begin, server)
            if fault.lasts:
                await asyncio.sleep(STRETCH)
            await asyncio.to_thread(fault.end, server)
            shared.append(await time_to_share(site))
            if not fault.lasts:
                await asyncio.sleep(max(0.0, begun + STRETCH - time.monotonic()))
            stretches.append((calm, begun))
    finally:
        load.stop()
        await sending
    calms = [load.p99(calm, begun) for calm, begun in stretches]
    amids = [load.p99(begun, begun + STRETCH) for _, begun in stretches]
    return Row(
        fault.name,
        len(load.answers),
        sum(error is not None for *_, error in load.answers),
        median(calms),
        median(amids),
        median(amid - calm for calm, amid in zip(calms, amids, strict=True)),
        shared,
    )


class Steady:
    """Requests at a steady rate through all gateways.

    Attributes:
        answers: of each request that has ended, when it was sent, the seconds that it took, and
            why it failed, if it did.
    """

    def __init__(self, site: Site) -> None:
        self.answers: list[tuple[float, float, str | None]] = []
        self._balancer = Balancer(site.gateways, 1)
        self._dice = random.Random("steady")
        self._prefixes = [_text(self._dice, PREFIX_BYTES) for _ in range(PREFIXES)]
        self._stopped = False

    async def send(self) -> None:
        """Until `stop`; returns when all have ended."""
        due = time.monotonic()
        async with asyncio.TaskGroup() as group:
            while not self._stopped:
                due += 1 / RATE
                await asyncio.sleep(due - time.monotonic())
                prompt = self._dice.choice(self._prefixes) + _text(self._dice, 100)
                group.create_task(self._ask(prompt))
        self._balancer.close()

    def stop(self) -> None:
        self._stopped = True

    def p99(self, begin: float, end: float) -> float:
        """Seconds, of those sent in between."""
        taken = sorted(seconds for sent, seconds, _ in self.answers if begin <= sent < end)
        return percentile(taken, 0.99)

    async def _ask(self, prompt: str) -> None:
        sent = time.monotonic()
        answer = await self._balancer.post(CHAT, msgspec.json.encode(ask(prompt)))
        self.answers.append((sent, time.monotonic() - sent, answer.error))


async def time_to_share(site: Site) -> float | None:
    """Seconds until what the first gateway learns is known to the second; None for never."""
    began, dice = time.monotonic(), random.Random()
    first, second = site.gateways
    client = Client(HOST, first.port)
    try:
        while (sent := time.monotonic()) < began + PATIENCE:
            request = ask(_text(dice, PREFIX_BYTES))
            await client.post(CHAT, msgspec.json.encode(request))
            look = partial(matched, second, request)
            while time.monotonic() < sent + _LATEST:
                if await asyncio.to_thread(look) > 0:
                    return time.monotonic() - began
                await asyncio.sleep(_POLL)
        return None
    finally:
        client.close()


def _text(dice: random.Random, size: int) -> str:
    return "".join(dice.choices(string.ascii_lowercase, k=size))


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| Redis | requests | failed | P99 before | amid | added | shared again after |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        times = [seconds for seconds in row.shared if seconds is not None]
        again = f"{max(times, default=nan):.2f} s" if len(times) == len(row.shared) else "never"
        lines.append(
            f"| {row.fault} | {row.requests} | {row.failed} | {row.calm * 1000:.1f} ms |"
            f" {row.amid * 1000:.1f} ms | {row.added * 1000:+.1f} ms | {again} |"
        )
    return "\n".join(lines)


MAX_ADDED = 1e-3
MAX_SHARED = 5.0


def missed(rows: Sequence[Row]) -> list[str]:
    """What is not as it should be, a line each."""
    found = []
    for row in rows:
        if row.failed:
            found.append(f"{row.fault}: {row.failed} requests failed")
        if row.added > MAX_ADDED:
            found.append(f"{row.fault}: {row.added * 1000:.1f} ms more at P99")
        if any(seconds is None or seconds > MAX_SHARED for seconds in row.shared):
            found.append(f"{row.fault}: learning is not shared again within {MAX_SHARED:g} s")
    return found
