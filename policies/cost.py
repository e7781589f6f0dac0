"""The terms of a placement's cost, each in seconds and each a function of plain facts.

Shared by the policies that look at load, so that "how busy" means the same to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.base import Candidate, RouteRequest

TYPICAL_OUTPUT = 300
"""Output tokens assumed of requests whose own expectation is not at hand."""
_SAFE_FILL = 0.95
_OVERFLOW_SECONDS = 150.0


def queue_seconds(candidate: Candidate) -> float:
    """Prefill work already there: what a newcomer's first token waits for."""
    return candidate.pending_tokens / candidate.prefill_rate


def prefill_seconds(
    candidate: Candidate, prompt_tokens: float, matched_tokens: float, attention_context: float
) -> float:
    """The request's own prefill.

    Args:
        attention_context: tokens of context at which attention has doubled the time a prompt token
            takes; it is what makes the end of a long prompt worth more than its beginning.
    """
    uncached = prompt_tokens - matched_tokens
    if uncached <= 0.0:
        return 0.0
    # Half of the uncached part lies before its average token, and all of the matched part.
    before = prompt_tokens - 0.5 * uncached
    return uncached / candidate.prefill_rate * (1.0 + before / attention_context)


def decode_seconds(candidate: Candidate, output_tokens: float, prompt_tokens: float) -> float:
    """The request's own decode, and what it slows the others' down by.

    Each step reads the context of every stream, so a long prompt makes every stream beside it
    slower, cached or not.

    Requests before their first token count as streams too: by the time this one decodes, so do
    they, and a request that brings no prompt is load all the same.
    """
    others = candidate.in_flight
    context = candidate.context_tokens + prompt_tokens * (1 + others)
    return output_tokens * (
        candidate.step_seconds
        + candidate.stream_seconds * (1 + 2 * others)
        + candidate.context_seconds * context
    )


def memory_seconds(candidate: Candidate, prompt_tokens: float) -> float:
    """Nothing while the KV cache has room; steep where engines begin to preempt."""
    capacity = candidate.capacity_tokens
    overflow = candidate.context_tokens + prompt_tokens - _SAFE_FILL * capacity
    return _OVERFLOW_SECONDS * overflow / capacity if overflow > 0.0 else 0.0


def placement_seconds(
    request: RouteRequest,
    candidates: Sequence[Candidate],
    theta: float,
    eta: float,
    omega: float,
    attention_context: float,
) -> list[float]:
    """For each candidate the terms above added up, each with its weight: queue + prefill * (1 +
    theta + eta * streams) + omega * decode + memory.

    One loop without calls, because it runs for every request; a test holds it against the terms.
    """
    prompt_tokens = request.prompt_tokens
    decode_weight = omega * request.output_tokens
    matched_at = request.match.tokens.get
    costs = []
    for candidate in candidates:
        rate = candidate.prefill_rate
        others = candidate.in_flight
        context = candidate.context_tokens
        cost = candidate.pending_tokens / rate + decode_weight * (
            candidate.step_seconds
            + candidate.stream_seconds * (1 + 2 * others)
            + candidate.context_seconds * (context + prompt_tokens * (1 + others))
        )
        uncached = prompt_tokens - matched_at(candidate.id, 0.0)
        if uncached > 0.0:
            attention = 1.0 + (prompt_tokens - 0.5 * uncached) / attention_context
            cost += uncached / rate * attention * (1.0 + theta + eta * candidate.decoding)
        capacity = candidate.capacity_tokens
        overflow = context + prompt_tokens - _SAFE_FILL * capacity
        if overflow > 0.0:
            cost += _OVERFLOW_SECONDS * overflow / capacity
        costs.append(cost)
    return costs


def outstanding_seconds(candidate: Candidate) -> float:
    """All the work a backend has: prefills before their first token, and streams."""
    streams = candidate.in_flight * TYPICAL_OUTPUT * candidate.stream_seconds
    return queue_seconds(candidate) + streams
