"""The randomised run: everything fails in turn, and what must hold is looked at."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from loadtests.chaos import journal
from loadtests.chaos.client import Client, End, Seen
from loadtests.chaos.faults import Fault
from loadtests.chaos.fleet import Fleet
from loadtests.chaos.gateway import STORM, Gateway, Metrics, Rest
from loadtests.chaos.mix import Demand, demands
from loadtests.chaos.recovery import recover
from loadtests.chaos.storm import Storm
from loadtests.chaos.verdict import Violations, check_answer, check_log, check_runs, hideable
from loadtests.process import Processes

CLIENTS = 64
"""At a time, each with one request after the other."""
SETTLE = 15.0
"""Seconds until all must have been given back; idle upstream connections are kept for 4."""
MEMORY_GROWTH = 0.1
MEMORY_SLACK = 16 << 20
"""Bytes. From the first third to the end memory may grow by the two together."""
LAG_LIMIT = 0.5
"""Seconds that the event loop may be late in 99 of 100 cases, on a machine that is full."""
_SAMPLE = 1.0


@dataclass(slots=True, frozen=True)
class Plan:
    """
    Attributes:
        first_token: seconds until the engines' answers begin, on average.
    """

    requests: int = 50_000
    engines: int = 8
    seed: int = 4
    clients: int = CLIENTS
    first_token: float = 0.1


@dataclass(slots=True)
class Course:
    """How memory went.

    Attributes:
        rss: bytes, with how many requests had ended.
    """

    rss: list[tuple[int, int]]

    def after(self, ended: int) -> int:
        return next((size for count, size in self.rss if count >= ended), self.rss[-1][1])


@dataclass(slots=True, frozen=True)
class Result:
    """
    Attributes:
        left: clients that did not wait for the end of their answer.
        faults: answers that each has spoilt, and processes that it struck.
        requests: how many there were in all.
        recovered: seconds from the last fault until all engines served; None when they never did.
        hidden: errors that a retry could have hidden.
        lag: seconds, of the event loop in 99 of 100 cases, rounded up to a bucket.
        rss: bytes at the start, after a third of the requests, and at the end.
        cpu: processor seconds of the gateway.
    """

    plan: Plan
    seconds: float
    requests: int
    recovered: float | None
    left: int
    outcomes: Counter[str]
    faults: Counter[Fault]
    metrics: Metrics
    hidden: list[Seen]
    lag: float
    rss: tuple[int, int, int]
    cpu: float
    violations: Violations


def run(plan: Plan, tell: Callable[[str], None] = lambda line: None) -> Result:
    """
    Args:
        tell: takes a line on how it goes, now and then.

    Raises:
        ProcessError: a process did not start, or the gateway ended.
    """
    with TemporaryDirectory(prefix="prefixgate-chaos-") as name, Processes() as processes:
        directory = Path(name)
        with Fleet(plan.engines, directory, plan.seed, plan.first_token) as fleet:
            gateway = Gateway(processes, directory, fleet.urls, STORM)
            return asyncio.run(_run(plan, fleet, gateway, tell))


async def _run(plan: Plan, fleet: Fleet, gateway: Gateway, tell: Callable[[str], None]) -> Result:
    violations = Violations()
    first = gateway.rss()
    base = await _lowest(gateway)
    began = time.monotonic()
    seen, begun, course = await _play(plan, fleet, gateway, violations, tell)
    seconds = time.monotonic() - began
    recovery = await recover(fleet, gateway.port, plan.seed)
    if recovery.seconds is None:
        violations.add("engines that are well and do not serve", str(gateway.states()))
    for each in recovery.seen:
        check_answer(each, violations)
        each.demand = _light(each.demand)
    seen += recovery.seen
    last = await _settle(gateway, base)
    for what in last.left_over(base):
        violations.add("what was not given back", what)
    if last.descriptors > base.descriptors:
        violations.add("sockets at the end", ", ".join(gateway.sockets()))
    gateway.service.check()
    metrics = gateway.metrics()
    counted = metrics.by("prefixgate_requests_total", "outcome")
    outcomes = check_log(seen, gateway.access_log(len(seen)), counted, violations)
    deeds = journal.read(engine.journal for engine in fleet.engines)
    check_runs(seen, deeds, violations)
    for line in gateway.complaints():
        violations.add("errors in the gateway's log", line)
    third, end = course.after(plan.requests // 3), gateway.rss()
    if end > third * (1 + MEMORY_GROWTH) + MEMORY_SLACK:
        violations.add("memory that grows", f"{third >> 20} MiB after a third, {end >> 20} MiB")
    lag = metrics.quantile("prefixgate_event_loop_lag_seconds", 0.99)
    if lag > LAG_LIMIT:
        violations.add("an event loop that is late", f"{lag:g} s in 1 of 100 cases")
    return Result(
        plan,
        seconds,
        len(seen),
        recovery.seconds,
        sum(each.ended_by is End.LEFT for each in seen),
        outcomes,
        deeds.faults + begun,
        metrics,
        hideable(seen, deeds, fleet.engines),
        lag,
        (first, third, end),
        gateway.cpu(),
        violations,
    )


async def _play(
    plan: Plan,
    fleet: Fleet,
    gateway: Gateway,
    violations: Violations,
    tell: Callable[[str], None],
) -> tuple[list[Seen], Counter[Fault], Course]:
    client, storm = Client(gateway.port), Storm(fleet, plan.seed)
    seen: list[Seen] = []
    course = Course([])
    waiting = demands(plan.requests, plan.seed)

    async def work(demands: Iterator[Demand]) -> None:
        for demand in demands:
            each = await client.send(demand)
            check_answer(each, violations)
            each.demand = _light(demand)
            seen.append(each)

    async def watch() -> None:
        while True:
            course.rss.append((len(seen), gateway.rss()))
            if len(course.rss) % 15 == 0:
                tell(f"{len(seen)} of {plan.requests}, {course.rss[-1][1] >> 20} MiB")
            await asyncio.sleep(_SAMPLE)

    around = [asyncio.create_task(storm.run()), asyncio.create_task(watch())]
    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(plan.clients):
                workers.create_task(work(waiting))
    finally:
        for task in around:
            task.cancel()
        await asyncio.gather(*around, return_exceptions=True)
        client.close()
    return seen, storm.begun, course


def _light(demand: Demand) -> Demand:
    """Without its body: thousands of them are kept."""
    return Demand(demand.name, demand.kind, demand.path, "", b"", demand.tokens, demand.leave)


async def _lowest(gateway: Gateway) -> Rest:
    """What it holds at rest: of several looks the least, as probes come and go."""
    looks = []
    for _ in range(10):
        looks.append(await asyncio.to_thread(gateway.rest))
        await asyncio.sleep(0.05)
    return min(looks, key=lambda look: look.descriptors)


async def _settle(gateway: Gateway, base: Rest) -> Rest:
    """Wait until nothing is left over."""
    deadline = time.monotonic() + SETTLE
    while True:
        look = await asyncio.to_thread(gateway.rest)
        if not look.left_over(base) or time.monotonic() > deadline:
            return look
        await asyncio.sleep(0.1)
