"""The terms of a placement's cost, each in seconds and each a function of plain facts.

Shared by the policies that look at load, so that "how busy" means the same to all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.base import Candidate, RouteRequest

TYPICAL_OUTPUT = 300
"""Output tokens assumed of requests whose own expectation is not at hand."""
SAFE_FILL = 0.95
"""Share of a KV cache that requests in flight may fill: what they generate needs room too."""
_OVERFLOW_SECONDS = 150.0


def cold_seconds(candidate: Candidate, prompt_tokens: float) -> float:
    """A prompt's prefill with nothing cached and nothing else running."""
    if prompt_tokens <= 0.0:
        return 0.0
    attention = 1.0 + 0.5 * prompt_tokens / candidate.attention_context
    step = candidate.step_seconds / candidate.chunk_tokens
    return prompt_tokens * (attention / candidate.prefill_rate + step)


def prefill_seconds(candidate: Candidate, prompt_tokens: float, matched_tokens: float) -> float:
    """A prompt's own prefill, less what is cached, among the streams that run there."""
    uncached = prompt_tokens - matched_tokens
    if uncached <= 0.0:
        return 0.0
    # Half of the uncached part lies before its average token, and all of the matched part.
    before = prompt_tokens - 0.5 * uncached
    attention = 1.0 + before / candidate.attention_context
    return uncached * (attention / candidate.prefill_rate + beside_streams(candidate))


def own_prefill_seconds(request: RouteRequest, candidate: Candidate) -> float:
    """The same of a request, less what the candidate is believed to hold of it."""
    matched = request.match.tokens.get(candidate.id, 0.0)
    return prefill_seconds(candidate, request.prompt_tokens, matched)


def beside_streams(candidate: Candidate) -> float:
    """Seconds by which a prompt token takes longer because each step decodes too: one token of
    every stream for a chunk of the prompt."""
    return step_seconds(candidate) / candidate.chunk_tokens


def step_seconds(candidate: Candidate) -> float:
    """A decode step of the streams that run there."""
    return (
        candidate.step_seconds
        + candidate.stream_seconds * candidate.decoding
        + candidate.context_seconds * candidate.context_tokens
    )


def service_seconds(candidate: Candidate, prompt_tokens: float, output_tokens: float) -> float:
    """A request's share of the steps that it decodes in."""
    streams = max(1, candidate.decoding)
    return output_tokens * (
        candidate.step_seconds / streams
        + candidate.stream_seconds
        + candidate.context_seconds * prompt_tokens
    )


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


def memory_seconds(candidate: Candidate, request: RouteRequest) -> float:
    """Nothing while the KV cache has room; steep where engines begin to preempt."""
    capacity = candidate.capacity_tokens
    overflow = candidate.memory_with(request) - SAFE_FILL * capacity
    return _OVERFLOW_SECONDS * overflow / capacity if overflow > 0.0 else 0.0


def placement_seconds(
    request: RouteRequest,
    candidates: Sequence[Candidate],
    queues: Sequence[float],
    theta: float,
    eta: float,
    omega: float,
) -> tuple[list[float], list[float]]:
    """For each candidate the terms above added up, each with its weight: queue + prefill * (1 +
    eta * streams) + theta * prefill as fast as usual + omega * decode + memory.

    Returns:
        The sums, and of each what is there for the others' sake: queue + omega * decode.

    One loop without calls, because it runs for every request; a test holds it against the terms.

    Args:
        queues: of each candidate, seconds of prefill that go first.
    """
    prompt_tokens = request.prompt_tokens
    decode_weight = omega * request.output_tokens
    matched_at = request.match.tokens.get
    costs, company = [], []
    for candidate, queue in zip(candidates, queues, strict=True):
        step, stream = candidate.step_seconds, candidate.stream_seconds
        per_context = candidate.context_seconds
        others, context = candidate.in_flight, candidate.context_tokens
        cost = queue + decode_weight * (
            step
            + stream * (1 + 2 * others)
            + per_context * (context + prompt_tokens * (1 + others))
        )
        company.append(cost)
        uncached = prompt_tokens - matched_at(candidate.id, 0.0)
        if uncached > 0.0:
            decoding = candidate.decoding
            attention = 1.0 + (prompt_tokens - 0.5 * uncached) / candidate.attention_context
            beside = (step + stream * decoding + per_context * context) / candidate.chunk_tokens
            rate = candidate.prefill_rate
            own = uncached * (attention / rate + beside)
            cost += own * (1.0 + eta * decoding + theta * rate / candidate.usual_rate)
        if context + candidate.other_tokens + prompt_tokens > SAFE_FILL * candidate.capacity_tokens:
            cost += memory_seconds(candidate, request)
        costs.append(cost)
    return costs, company


def outstanding_seconds(request: RouteRequest, candidate: Candidate) -> float:
    """All the work a backend has: prefills before their first token, and streams."""
    return candidate.queue_seconds(request) + stream_seconds(candidate)


def stream_seconds(candidate: Candidate) -> float:
    """What the streams there add to each other's steps."""
    return candidate.in_flight * TYPICAL_OUTPUT * candidate.stream_seconds
