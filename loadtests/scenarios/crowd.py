"""Two hundred requests at once, before any engine could report what the first of them did to it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from loadtests.replay.result import Result
from loadtests.replay.trace import TraceRequest
from loadtests.scenarios.prompts import Prompts, ask
from loadtests.scenarios.stage import ENGINES, Stage
from loadtests.scenarios.table import Figures
from loadtests.summary import percentile

TITLE = "200 requests within 50 ms"
REQUESTS = 200
SPREAD = 0.05
"""Seconds."""
PREFIX_TOKENS = 6144
OWN_TOKENS = (100, 2000)
OUTPUT_TOKENS = 100
BEGIN = 30.0
"""Seconds after which they come: what has been asked before is cached by then."""
OURS = "prefix_affinity"
ARMS = (OURS, "lmetric", "llm_d_blend", "minimum_ttft")
KINDS = {
    "nothing shared": (False, False),
    "shared, new": (True, False),
    "shared, cached": (True, True),
}
"""Whether all prompts begin alike, and whether one engine holds that beginning."""


def run() -> dict[str, Figures]:
    """All arms with prompts of each kind, the shared beginning cached on one engine or nowhere."""
    rows: dict[str, Figures] = {}
    for arm in ARMS:
        for kind, (shared, cached) in KINDS.items():
            requests = crowd(shared=shared, cached=cached)
            results = Stage(arm).play(requests)[-REQUESTS:]
            rows[f"{arm}, {kind}"] = _figures(results)
    return rows


def crowd(*, shared: bool, cached: bool) -> list[TraceRequest]:
    """The crowd; before it, where the beginning is to be cached, one request that has it."""
    dice, prompts = random.Random("crowd"), Prompts()
    common = prompts.prefix(PREFIX_TOKENS)
    first = [ask(0.0, prompts.own(common, 100), OUTPUT_TOKENS)] if cached else []
    return first + [
        ask(
            BEGIN + SPREAD * place / REQUESTS,
            prompts.own(
                common if shared else prompts.prefix(PREFIX_TOKENS), dice.randint(*OWN_TOKENS)
            ),
            OUTPUT_TOKENS,
        )
        for place in range(REQUESTS)
    ]


def _figures(results: Sequence[Result]) -> Figures:
    counts = Counter(result.engine for result in results)
    work = [0.0] * ENGINES
    for result in results:
        work[result.engine] += result.prefill_seconds
    ttfts = sorted(result.ttft or 0.0 for result in results)
    return {
        "max/mean requests": max(counts.values()) * ENGINES / len(results),
        "max/mean work": max(work) / fmean(work),
        "TTFT mean": fmean(ttfts),
        "TTFT P95": percentile(ttfts, 0.95),
    }
