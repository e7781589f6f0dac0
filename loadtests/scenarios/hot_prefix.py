"""One beginning that is asked for more often than the engine that holds it can serve."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from loadtests.replay import source
from loadtests.replay.generators.draw import poisson
from loadtests.replay.result import Result
from loadtests.replay.trace import TraceRequest
from loadtests.scenarios.prompts import Prompts, ask
from loadtests.scenarios.stage import ENGINES, Stage, fleet
from loadtests.scenarios.table import Figures
from loadtests.summary import percentile

TITLE = "one hot prefix at 1.15 times what its owner alone can serve"
LOAD = 1.15
PREFIX_TOKENS = 6144
OWN_TOKENS = (256, 1024)
OUTPUT_TOKENS = 100
SECONDS = 180.0
OTHERS = "gen:chat?rate=5&seconds=180"
"""Conversations, about half of what eight engines can take."""
BATCH = 400
"""Requests at once that tell what one engine can serve."""
OURS = "prefix_affinity"
OWNER_ONLY = "consistent_hash?blocks=12&bound=100+plain"
"""The hash of the prefix's last block, and no bound that anything reaches."""
ARMS = (OURS, OWNER_ONLY, "power_of_two")


def run() -> dict[str, Figures]:
    """All arms, each with the hot prefix alone and then among conversations."""
    hot = hot_requests(LOAD * owner_rate())
    others = list(source.find(OTHERS)(1).requests)
    rows: dict[str, Figures] = {}
    for where, rest in (("alone", []), ("among others", others)):
        played = {arm: _play(arm, hot, rest) for arm in ARMS}
        owner_hit = played[OWNER_ONLY]["hit"]
        for arm, figures in played.items():
            rows[f"{arm}, {where}"] = {**figures, "of owner's": figures["hit"] / owner_hit}
    return rows


def owner_rate() -> float:
    """Requests per second that one engine serves when it never waits for any."""
    results = Stage("round_robin+plain", fleet(1)).play(_asking([0.0] * BATCH))
    return BATCH / max(result.last or 0.0 for result in results)


def hot_requests(rate: float) -> list[TraceRequest]:
    return _asking(list(poisson(random.Random("arrivals"), rate, 0.0, SECONDS)))


def _asking(arrivals: Sequence[float]) -> list[TraceRequest]:
    dice, prompts = random.Random("lengths"), Prompts()
    hot = prompts.prefix(PREFIX_TOKENS)
    return [
        ask(arrival, prompts.own(hot, dice.randint(*OWN_TOKENS)), OUTPUT_TOKENS)
        for arrival in arrivals
    ]


def _play(arm: str, hot: Sequence[TraceRequest], others: Sequence[TraceRequest]) -> Figures:
    apart = 1 + max(request.blocks[-1] for request in hot)
    others = [replace(r, blocks=tuple(block + apart for block in r.blocks)) for r in others]
    results = Stage(arm).play([*hot, *others])
    own = results[: len(hot)]
    work = [0.0] * ENGINES
    for result in results:
        work[result.engine] += result.prefill_seconds
    return {
        "work CV": pstdev(work) / fmean(work),
        "hit": sum(result.cached_tokens for result in own)
        / sum(result.input_tokens for result in own),
        "TTFT P95": _ttft_p95(own),
        "all TTFT P95": _ttft_p95(results),
    }


def _ttft_p95(results: Sequence[Result]) -> float:
    return percentile(sorted(result.ttft or 0.0 for result in results), 0.95)
