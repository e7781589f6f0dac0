"""What it costs to keep replicas alike: the way of what is learnt, memory, restarts, a death.

Each figure that could be the machine's own has its like where gateways share nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

import uvloop

from loadtests.process import Processes
from loadtests.redis.server import RedisServer
from loadtests.replicas import death, idle, rejoin, restart, way
from loadtests.replicas.death import IN_FLIGHT, LEASE
from loadtests.replicas.ground import Ground
from loadtests.replicas.idle import Idle
from loadtests.replicas.rejoin import Rejoin
from loadtests.replicas.restart import Restart
from loadtests.replicas.site import open_gateway, open_site
from loadtests.replicas.way import Cost, Way
from loadtests.summary import percentile

T = TypeVar("T")

_MIB = 1 << 20
_FEW = 500
"""One prompt in so many is waited for where none ever comes: waiting costs what it measures."""


@dataclass(slots=True, frozen=True)
class Pair(Generic[T]):
    """
    Attributes:
        shared: of gateways with Redis.
        alone: of the same without.
    """

    shared: T
    alone: T


@dataclass(slots=True, frozen=True)
class Report:
    """
    Attributes:
        gone: seconds until the load of a dead gateway is; None when it was never seen.
    """

    way: Pair[Way]
    cost: Pair[Cost]
    idle: Pair[Idle]
    restart: Restart
    rejoin: Pair[Rejoin]
    gone: float | None


def run() -> Report:
    """
    Raises:
        ProcessError: a process does not start.
    """
    return Report(
        Pair(
            _on(lambda ground, _: way.measure(ground)),
            _on(lambda ground, _: way.measure(ground, _FEW), shared=False),
        ),
        Pair(_on(way.cost), _on(way.cost, shared=False)),
        Pair(_on(idle.measure), _on(idle.measure, shared=False)),
        _on(restart.measure),
        Pair(_rejoin(shared=True), _rejoin(shared=False)),
        _on(lambda ground, _: death.measure(ground)),
    )


def _on(
    measure: Callable[[Ground, RedisServer | None], Coroutine[Any, Any, T]], *, shared: bool = True
) -> T:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        server = stack.enter_context(RedisServer()) if shared else None
        processes = stack.enter_context(Processes())
        ground = Ground(processes, directory, None if server is None else server.settings)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(measure(ground, server))


def _rejoin(*, shared: bool) -> Rejoin:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        redis = stack.enter_context(RedisServer()).settings if shared else None
        processes = stack.enter_context(Processes())
        site = open_site(
            processes,
            directory,
            engines=rejoin.ENGINES,
            gateways=2,
            redis=redis,
            speed=rejoin.SPEED,
            kv_tokens=rejoin.KV_TOKENS,
        )
        again = partial(open_gateway, processes, directory, site.engines, redis)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(rejoin.measure(site, processes, again))


def table(report: Report) -> str:
    """Markdown."""
    learnt, lonely = report.way.shared, report.way.alone
    cost, request = report.cost.shared, report.cost.alone
    busy, quiet = report.idle.shared, report.idle.alone
    restarted, rejoined = report.restart, report.rejoin
    gone = "never counted" if report.gone is None else f"{report.gone:.1f} s"
    rows = (
        ("prefixes learnt per second at one gateway", f"{learnt.rate:.0f}"),
        (
            "of those waited for at another, it got to know; without Redis",
            f"{_arrived(learnt)}; {_arrived(lonely)}",
        ),
        (
            "from the first token to there, P50, P99",
            f"{percentile(learnt.seconds, 0.5) * 1000:.1f} ms,"
            f" {percentile(learnt.seconds, 0.99) * 1000:.1f} ms",
        ),
        (
            "CPU per learnt prefix: request and learning without Redis, more with it, at each"
            " follower, at Redis",
            f"{request.learner * 1e6:.0f} µs, {(cost.learner - request.learner) * 1e6:+.0f} µs,"
            f" {cost.follower * 1e6:.0f} µs, {cost.redis * 1e6:.0f} µs",
        ),
        (
            "CPU of a gateway that has nothing to do, with Redis and without",
            f"{busy.cpu:.1%}, {quiet.cpu:.1%} of a core",
        ),
        (
            "its commands to Redis, and what they cost there",
            f"{busy.commands:.0f} per second, {busy.redis:.1%} of a core",
        ),
        (
            f"blocks learnt, by prompts of {restart.PROMPT_BYTES // 4} tokens",
            f"{restarted.blocks}",
        ),
        (
            "memory per million blocks, of the gateway, of Redis",
            f"{restarted.gateway / _MIB:.0f} MiB, {restarted.redis / _MIB:.0f} MiB",
        ),
        ("a new gateway is ready after", f"{restarted.ready:.1f} s"),
        ("it has, of the blocks", f"{restarted.back:.3f}"),
        (
            "follow-up hits of sessions before one of two gateways is restarted; of the turns"
            f" through it in its first {rejoin.FIRST:.0f} s",
            _rejoined(rejoined.shared),
        ),
        ("the same without Redis", _rejoined(rejoined.alone)),
        (f"load of a gateway killed with {IN_FLIGHT} in flight is gone after", gone),
    )
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)])


def _arrived(way: Way) -> str:
    return f"{len(way.seconds)} of {len(way.seconds) + way.lost}"


def _rejoined(rejoined: Rejoin) -> str:
    return (
        f"{rejoined.steady:.3f}; {rejoined.first:.3f}, which is {rejoined.kept:.3f} of it"
        f" ({rejoined.turns} turns, {rejoined.failed} failed)"
    )


def missed(report: Report) -> list[str]:
    """What is not as it should be, a line each."""
    learnt, restarted, rejoined = report.way.shared, report.restart, report.rejoin
    slow = learnt.lost > 0 or not percentile(learnt.seconds, 0.99) < 0.05
    wrong = {
        "not every prefix gets to the other gateway within 50 ms at P99": slow,
        "gateways without Redis hear of each other": report.way.alone.seconds,
        "the gateway takes more than 150 MiB per million blocks": restarted.gateway > 150 * _MIB,
        "Redis takes more than 100 MiB per million blocks": restarted.redis > 100 * _MIB,
        "a restarted gateway is not ready within 5 s": restarted.ready > 5.0,
        "a restarted gateway has less than 0.99 of the index": restarted.back < 0.99,
        "a restarted gateway finds less than 0.97 of what it found": rejoined.shared.kept < 0.97,
        "one without Redis finds as much": rejoined.alone.kept >= 0.97,
        "turns fail when a gateway is restarted": rejoined.shared.failed,
        "the load of a dead gateway stays longer than its lease, or was never seen": report.gone
        is None
        or report.gone > LEASE,
    }
    return [what for what, is_so in wrong.items() if is_so]
