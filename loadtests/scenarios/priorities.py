"""High, normal and low priority while more comes than can be served."""

from __future__ import annotations

import random
from dataclasses import replace

from gateway.types import Priority
from loadtests.replay.generators.draw import around, poisson
from loadtests.replay.result import Result
from loadtests.replay.trace import TraceRequest
from loadtests.scenarios.prompts import Prompts, ask
from loadtests.scenarios.stage import Stage
from loadtests.scenarios.table import Figures
from loadtests.summary import percentile

TITLE = "three priorities, each asking for 0.5 of what the engines can serve"
RATE = 7.0
"""Requests per second of each."""
SECONDS = 60.0
PROMPT_TOKENS = 4000
OUTPUT_TOKENS = 100
OURS = "prefix_affinity"


def run() -> dict[str, Figures]:
    """Each priority of one run."""
    requests = _requests()
    results = Stage(OURS).play(requests)
    of: dict[Priority, list[Result]] = {}
    for request, result in zip(requests, results, strict=True):
        of.setdefault(request.priority, []).append(result)
    served = sum(_served(own) for own in of.values())
    rows: dict[str, Figures] = {}
    for priority in Priority:
        ttfts = sorted(r.ttft for r in of[priority] if r.ttft is not None)
        rows[f"{OURS}, {priority}"] = {
            "TTFT P50": percentile(ttfts, 0.5),
            "TTFT P95": percentile(ttfts, 0.95),
            "refused": sum(result.first is None for result in of[priority]) / len(of[priority]),
            "share of served": _served(of[priority]) / served,
        }
    return rows


def _requests() -> list[TraceRequest]:
    prompts, made = Prompts(), []
    for priority in Priority:
        dice = random.Random(priority)
        for arrival in poisson(dice, RATE, 0.0, SECONDS):
            prompt = prompts.prefix(around(dice, PROMPT_TOKENS, 0.5, 20_000))
            request = ask(arrival, prompt, OUTPUT_TOKENS)
            made.append(replace(request, priority=priority))
    return sorted(made, key=lambda request: request.arrival)


def _served(results: list[Result]) -> int:
    """How many got their first token while requests still came."""
    return sum(result.first is not None and result.first <= SECONDS for result in results)
