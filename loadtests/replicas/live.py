"""Sessions whose turns go through any of several real gateways, with and without Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop

from loadtests.player import Recording, play
from loadtests.process import ProcessError, Processes
from loadtests.redis.server import RedisServer
from loadtests.replicas.site import MODEL, Balancer, open_site
from loadtests.sample import Sample
from loadtests.summary import percentile
from loadtests.workload import Kind, Mix, generate

REPLICAS = (1, 2, 4, 8)
ENGINES = 3
SPEED = 4.0
KV_TOKENS = 131_072
MIX = Mix(chats=160, documents=0, one_offs=0, arrivals=25.0, chat_turns=(4, 6), think=3.0)


@dataclass(slots=True, frozen=True)
class Row:
    """
    Attributes:
        follow_ups: of the prompt of the turn before, the share that a turn finds cached.
        imbalance: prompt tokens computed by the engine that computed most, over the mean.
        lag: seconds that the client was late, in all but 1 % of its looks.
    """

    replicas: int
    shared: bool
    requests: int
    follow_ups: float
    imbalance: float
    ttft_p50: float
    ttft_p99: float
    lag: float


def run(replicas: Sequence[int] = REPLICAS, url: str | None = None, seed: int = 1) -> list[Row]:
    """
    Args:
        url: of a Redis that is there; one is started when there is none.

    Raises:
        ProcessError: a process does not start, or a request fails.
    """
    rows = []
    for count in replicas:
        for shared in (True, False) if count > 1 else (False,):
            with ExitStack() as stack:
                name = stack.enter_context(TemporaryDirectory())
                redis = None
                if shared:
                    found = url or stack.enter_context(RedisServer()).url
                    redis = {"url": found, "namespace": f"replicas-{count}"}
                processes = stack.enter_context(Processes())
                rows.append(_row(count, shared, _record(processes, Path(name), count, redis, seed)))
    return rows


def _record(
    processes: Processes, directory: Path, count: int, redis: dict[str, str] | None, seed: int
) -> Recording:
    site = open_site(
        processes,
        directory,
        engines=ENGINES,
        gateways=count,
        redis=redis,
        speed=SPEED,
        kv_tokens=KV_TOKENS,
    )

    def observe(sample: Sample) -> None:
        if sample.error is not None:
            raise ProcessError(f"{sample.session}, turn {sample.turn}: {sample.error}")

    async def talk() -> Recording:
        balancer = Balancer(site.gateways, seed)
        try:
            return await play(balancer, MODEL, generate(MIX, seed), observe)
        finally:
            balancer.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(talk())


def _row(replicas: int, shared: bool, recording: Recording) -> Row:
    samples = recording.samples
    ttfts = sorted(sample.ttft for sample in samples if sample.ttft is not None)
    work: dict[str, int] = {}
    for sample in samples:
        computed = sample.prompt_tokens - sample.cached_tokens
        work[sample.backend] = work.get(sample.backend, 0) + computed
    return Row(
        replicas,
        shared,
        len(samples),
        follow_ups(samples),
        max(work.values()) * ENGINES / max(1, sum(work.values())),
        percentile(ttfts, 0.5),
        percentile(ttfts, 0.99),
        percentile(sorted(recording.lags), 0.99),
    )


def follow_ups(samples: Iterable[Sample]) -> float:
    """Of the prompts of the turns before, the share that follow-up turns found cached."""
    turns = {(sample.session, sample.turn): sample for sample in samples}
    found = there = 0
    for (session, turn), sample in turns.items():
        before = turns.get((session, turn - 1))
        if sample.kind is Kind.CHAT and before is not None:
            there += before.prompt_tokens
            found += min(sample.cached_tokens, before.prompt_tokens)
    return found / there if there else nan


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    head = (
        "| gateways | | requests | follow-up hits | of one's | computed max/mean | TTFT P50 | P99 |"
        " client late, P99 |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    )
    lines = [head]
    for row in rows:
        name = "" if row.replicas == 1 else "Redis" if row.shared else "nothing shared"
        lines.append(
            f"| {row.replicas} | {name} | {row.requests} | {row.follow_ups:.3f} |"
            f" {row.follow_ups / rows[0].follow_ups:.3f} | {row.imbalance:.2f} |"
            f" {row.ttft_p50 * 1000:.0f} ms | {row.ttft_p99 * 1000:.0f} ms |"
            f" {row.lag * 1000:.0f} ms |"
        )
    return "\n".join(lines)


TOLERANCE = 0.01
"""How far several gateways that share may be from one."""


def missed(rows: Sequence[Row]) -> list[str]:
    """What is not as it should be, a line each."""
    one, found = rows[0], []
    for row in rows[1:]:
        share = row.follow_ups / one.follow_ups
        if row.shared and share < 1 - TOLERANCE:
            found.append(f"{row.replicas} gateways: {share:.3f} of the follow-up hits of one")
        if not row.shared and share > 1 - TOLERANCE:
            found.append(f"{row.replicas} gateways that share nothing find as much as one")
    return found
