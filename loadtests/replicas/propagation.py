"""What it costs to keep replicas alike: the way of what is learnt, memory, restarts, a death.

The engine has no work of its own. Where gateways share nothing each figure that needs them to is
told as never, or as nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import uvloop

from loadtests.process import Processes
from loadtests.replicas import death, restart, way
from loadtests.replicas.death import IN_FLIGHT
from loadtests.replicas.ground import Ground
from loadtests.replicas.restart import Restart
from loadtests.replicas.way import Way
from loadtests.summary import percentile

T = TypeVar("T")

_MIB = 1 << 20


@dataclass(slots=True, frozen=True)
class Report:
    """
    Attributes:
        unshared: the way's figures where the gateways share nothing; the difference in CPU is what
            sharing costs.
        gone: seconds until the load of a dead gateway is; None when it was never seen.
    """

    way: Way
    unshared: Way
    restart: Restart
    gone: float | None


def run(url: str | None = None) -> Report:
    """
    Args:
        url: of a Redis that is there; one is started when there is none.

    Raises:
        ProcessError: a process does not start.
    """
    return Report(
        _with(way.measure, url, shared=True),
        _with(way.measure, url, shared=False),
        _with(restart.measure, url, shared=True),
        _with(death.measure, url, shared=True),
    )


def _with(
    measure: Callable[[Ground], Coroutine[Any, Any, T]], url: str | None, *, shared: bool
) -> T:
    with TemporaryDirectory() as name, Processes() as processes:
        ground = Ground(processes, Path(name), url, shared)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(measure(ground))


def table(report: Report) -> str:
    """Markdown."""
    learnt, unshared, restarted = report.way, report.unshared, report.restart
    learner = learnt.learner - unshared.learner
    follower = learnt.follower - unshared.follower
    arrived = f"{len(learnt.seconds)} of {len(learnt.seconds) + learnt.lost}"
    gone = "never counted" if report.gone is None else f"{report.gone:.1f} s"
    rows = (
        ("prefixes learnt per second at one gateway", f"{learnt.rate:.0f}"),
        ("of those waited for at another, it got to know", arrived),
        (
            "from the first token to there, P50, P99",
            f"{percentile(learnt.seconds, 0.5) * 1000:.1f} ms,"
            f" {percentile(learnt.seconds, 0.99) * 1000:.1f} ms",
        ),
        (
            "CPU per learnt prefix for sharing, at the learner, at the follower",
            f"{learner * 1e6:.0f} µs, {follower * 1e6:.0f} µs",
        ),
        ("blocks learnt", f"{restarted.blocks}"),
        (
            "memory per million blocks, of the gateway, of Redis",
            f"{restarted.gateway / _MIB:.0f} MiB, {restarted.redis / _MIB:.0f} MiB",
        ),
        ("a new gateway is ready after", f"{restarted.ready:.1f} s"),
        ("it has, of the blocks", f"{restarted.back:.3f}"),
        ("it knows, of what is asked for in its first seconds", f"{restarted.known:.3f}"),
        (f"load of a gateway killed with {IN_FLIGHT} in flight is gone after", gone),
    )
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)])


def missed(report: Report) -> list[str]:
    """What is not as it should be, a line each."""
    learnt, restarted = report.way, report.restart
    slow = learnt.lost > 0 or not percentile(learnt.seconds, 0.99) < 0.05
    wrong = {
        "not every prefix gets to the other gateway within 50 ms at P99": slow,
        "the gateway takes more than 150 MiB per million blocks": restarted.gateway > 150 * _MIB,
        "Redis takes more than 100 MiB per million blocks": restarted.redis > 100 * _MIB,
        "a restarted gateway is not ready within 5 s": restarted.ready > 5.0,
        "a restarted gateway has less than 0.99 of the index": restarted.back < 0.99,
        "a restarted gateway knows less than 0.97 of what is asked for": restarted.known < 0.97,
        "the load of a dead gateway stays, or was never seen": report.gone is None,
    }
    return [what for what, is_so in wrong.items() if is_so]
