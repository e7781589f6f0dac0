"""How much of what a conversation has said already its next turn finds cached."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import nan

from loadtests.replay.oracle import Oracle
from loadtests.replay.result import Result
from loadtests.replay.trace import Trace


def reusable(trace: Trace) -> list[int]:
    """Per request, the prompt tokens that some request before it had too."""
    endless = Oracle(trace.unit_tokens, None)
    return [endless.serve(list(trace.units(r)), r.input_tokens) for r in trace.requests]


def hit_share(
    trace: Trace, results: Iterable[Result], reusable: Sequence[int], begin: float
) -> float:
    """Of the tokens that follow-up turns could have found cached, those that they did.

    Args:
        results: of the trace's requests, in their order.
        reusable: the same.
        begin: only what arrives from then on counts.
    """
    found = there = 0
    for request, result, tokens in zip(trace.requests, results, reusable, strict=True):
        if request.parent is not None and result.first is not None and result.arrival >= begin:
            found += result.cached_tokens
            there += tokens
    return found / there if there else nan
