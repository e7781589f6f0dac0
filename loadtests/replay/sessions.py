"""Which request is the next turn of which, read from what they share."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from loadtests.replay.trace import Trace, TraceRequest
from loadtests.sim.profile import Profile

COMMON_SHARE = 0.01
MIN_COMMON = 100
"""A block that this share of the requests, and so many of them, have is a system prompt: it does
not make them turns of one session."""


def link(trace: Trace, profile: Profile) -> Trace:
    """The trace with parents and think times; as it is when it has some already.

    A request's parent is the last one before it of its session, where clients name theirs; else the
    last one that has its deepest block which is not common.
    What lies between the two, less the time that an idle engine would have taken for the parent,
    is think time.

    Args:
        profile: of the engine that is taken to have served the trace.
    """
    if any(request.parent is not None for request in trace.requests):
        return trace
    common, scale = _common(trace), trace.scale
    last_with: dict[int, int] = {}
    last_of: dict[str, int] = {}
    shared: list[int] = []
    requests: list[TraceRequest] = []
    for place, request in enumerate(trace.requests):
        parent, depth = None, 0
        for at in range(len(request.blocks) - 1, -1, -1):
            block = request.blocks[at]
            if block in last_with and block not in common:
                parent, depth = last_with[block], at + 1
                break
        if request.session is not None:
            parent = last_of.get(request.session)
            last_of[request.session] = place
        think = 0.0
        if parent is not None:
            before = requests[parent]
            cached = int(scale.tokens(shared[parent]) * trace.token_ratio)
            cached = min(cached, before.input_tokens - 1)
            service = service_seconds(profile, before, cached)
            think = max(0.0, request.arrival - before.arrival - service)
        shared.append(depth)
        requests.append(replace(request, parent=parent, think=think))
        last_with.update(dict.fromkeys(request.blocks, place))
    return replace(trace, requests=requests)


def service_seconds(profile: Profile, request: TraceRequest, cached_tokens: int) -> float:
    """A request from its arrival to its last token, alone on an idle engine."""
    timing = profile.timing
    uncached = request.input_tokens - cached_tokens
    steps = -(-uncached // profile.max_num_batched_tokens)
    context = request.input_tokens + request.output_tokens / 2
    token = timing.base + timing.per_stream + timing.per_context_token * context
    further = max(0, request.output_tokens - 1)
    return timing.base * steps + timing.prefill(cached_tokens, uncached) + token * further


def _common(trace: Trace) -> set[int]:
    least = max(MIN_COMMON, COMMON_SHARE * len(trace.requests))
    counts = Counter(block for request in trace.requests for block in set(request.blocks))
    return {block for block, count in counts.items() if count >= least}
