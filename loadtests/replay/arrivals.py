"""Arrivals that were recorded in batches, spread over the time in which they really came."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from loadtests.replay.trace import Trace, TraceRequest

MIN_GRAIN = 0.5
"""Seconds. Timestamps that are multiples of this or more were put together in batches."""
SLACK = 0.005
"""Seconds by which a batch's timestamp may lie beside the multiple."""
ON_GRAIN = 0.99
"""Share of the arrivals that must lie on it."""
JITTER = 0.05
"""Seconds."""


def grain(requests: Sequence[TraceRequest]) -> float:
    """Seconds that arrivals are multiples of; 0 when those are so few that they are exact."""
    arrivals = sorted({request.arrival for request in requests})
    gaps = Counter(round((later - before) / SLACK) for before, later in pairwise(arrivals))
    likely = (round(steps * SLACK, 3) for steps, _ in gaps.most_common(3))
    for step in likely:
        if step >= MIN_GRAIN:
            beside = (abs(at - step * round(at / step)) for at in arrivals)
            if sum(distance <= SLACK for distance in beside) >= ON_GRAIN * len(arrivals):
                return step
    return 0.0


def spread(trace: Trace, seed: int) -> Trace:
    """Lay the arrivals of each batch anywhere within its window: all policies would see bursts
    otherwise that were never there. Exact arrivals are moved by up to `JITTER`, so that runs with
    several seeds show how much of a difference is chance.
    """
    window, shift = (trace.window, 0.0) if trace.window else (2 * JITTER, -JITTER)
    dice = random.Random(f"spread:{seed}")
    drawn = [
        max(0.0, request.arrival + shift + dice.random() * window) for request in trace.requests
    ]
    order = sorted(range(len(drawn)), key=drawn.__getitem__)
    new_place = {old: new for new, old in enumerate(order)}
    requests = []
    for old in order:
        request = trace.requests[old]
        parent = None if request.parent is None else new_place[request.parent]
        requests.append(replace(request, arrival=drawn[old], parent=parent))
    return replace(trace, requests=requests)
