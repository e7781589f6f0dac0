"""One tenant that asks for far more than there is, and nine that do not."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace

from loadtests.replay.generators.draw import around, poisson
from loadtests.replay.result import Result
from loadtests.replay.trace import TraceRequest
from loadtests.scenarios.prompts import Prompts, ask
from loadtests.scenarios.stage import Stage
from loadtests.scenarios.table import Figures
from loadtests.summary import percentile

TITLE = "nine normal tenants, and one that asks for almost twice what all can serve"
TENANTS = 9
RATE = 0.7
"""Requests per second of each: together about 0.4 of what the engines can serve."""
GREEDY_RATE = 2.2
"""The same where each asks for more than its share."""
FLOOD_RATE = 32.0
SECONDS = 60.0
PROMPT_TOKENS = 4000
OUTPUT_TOKENS = 100
FLOODER = "flooder"
OURS = "prefix_affinity"
NO_TENANTS = "prefix_affinity, tenants not told apart"
GREEDY = "prefix_affinity, all above their share"


def run() -> dict[str, Figures]:
    """The normal ones alone, then beside the flooder with and without being told apart from it,
    then with demands that all are above their share."""
    calm, flooded, greedy = (
        _requests(RATE, flood=False),
        _requests(RATE, flood=True),
        _requests(GREEDY_RATE, flood=True),
    )
    nobody = [replace(request, tenant="") for request in flooded]
    played = {
        f"{OURS}, no flooder": (calm, calm),
        OURS: (flooded, flooded),
        NO_TENANTS: (flooded, nobody),
        GREEDY: (greedy, greedy),
    }
    return {name: _figures(owned, Stage(OURS).play(sent)) for name, (owned, sent) in played.items()}


def jain(shares: Iterable[float]) -> float:
    """Jain's index of fairness: 1 when all are equal, 1/n when one has everything."""
    values = list(shares)
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def _requests(rate: float, *, flood: bool) -> list[TraceRequest]:
    rates = {f"tenant-{number}": rate for number in range(TENANTS)}
    if flood:
        rates[FLOODER] = FLOOD_RATE
    prompts, made = Prompts(), []
    for tenant, own_rate in rates.items():
        dice = random.Random(tenant)
        for arrival in poisson(dice, own_rate, 0.0, SECONDS):
            prompt = prompts.prefix(around(dice, PROMPT_TOKENS, 0.5, 20_000))
            output = around(dice, OUTPUT_TOKENS, 0.5, 500)
            made.append(ask(arrival, prompt, output, tenant))
    return sorted(made, key=lambda request: request.arrival)


def _figures(requests: Iterable[TraceRequest], results: Iterable[Result]) -> Figures:
    of: dict[str, list[Result]] = {}
    for request, result in zip(requests, results, strict=True):
        of.setdefault(request.tenant, []).append(result)
    normal = [result for tenant in of if tenant != FLOODER for result in of[tenant]]
    ttfts = sorted(result.ttft for result in normal if result.ttft is not None)
    service = _service(of)
    return {
        "TTFT P50": percentile(ttfts, 0.5),
        "TTFT P95": percentile(ttfts, 0.95),
        "refused": sum(result.first is None for result in normal) / len(normal),
        "Jain": jain(seconds for tenant, seconds in service.items() if tenant != FLOODER),
        "Jain of all": jain(service.values()),
        "flooder's share": service.get(FLOODER, 0.0) / sum(service.values()),
    }


def _service(of: Mapping[str, Iterable[Result]]) -> dict[str, float]:
    """Seconds of prefill that each tenant got while requests still came."""
    return {
        tenant: sum(
            result.prefill_seconds
            for result in results
            if result.first is not None and result.first <= SECONDS
        )
        for tenant, results in of.items()
    }
