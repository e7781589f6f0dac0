"""Why a request went elsewhere although another backend holds more of its prompt."""

from __future__ import annotations

from enum import StrEnum

from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from policies.base import RouteRequest
from policies.cost import decode_seconds, memory_seconds


class SpillCause(StrEnum):
    """What was wrong with the backend that holds most; also a metric label, so the set is
    closed."""

    GONE = "gone"
    """It takes no requests now."""
    FAILED = "failed"
    """The request was there before, and failed."""
    FULL = "full"
    """It is at a limit of the request's class or length."""
    QUEUE = "queue"
    """Prefill that goes first there."""
    MEMORY = "memory"
    """Its KV cache is nearly full."""
    DECODE = "decode"
    """Its streams."""


def spill_cause(
    request: RouteRequest, chosen: str, pool: Pool, avoid: tuple[str, ...]
) -> SpillCause:
    """Args:
    chosen: id of the backend that has just got the request.
    avoid: backends that it must not go to any more.
    """
    held = request.match.blocks
    if not held:
        return SpillCause.GONE  # between the decision and now, or its cache is
    holder = max(held, key=held.__getitem__)
    loads = {load.id: load for load in pool.backends}
    if holder in avoid:
        return SpillCause.FAILED
    if holder not in loads:
        return SpillCause.GONE
    if pool.is_full(loads[holder]):
        return SpillCause.MEMORY
    if loads[holder] not in pool.candidates(request):
        return SpillCause.FULL
    return _dearest(request, loads[holder], loads.get(chosen))


def _dearest(request: RouteRequest, holder: BackendLoad, chosen: BackendLoad | None) -> SpillCause:
    """Args:
    chosen: None when it was put out between the decision and now.
    """
    output, prompt = request.output_tokens, request.prompt_tokens
    decode = decode_seconds(holder, output, prompt)
    if chosen is not None:
        decode -= decode_seconds(chosen, output, prompt)
    costs = {
        SpillCause.QUEUE: holder.queue_seconds(request),
        SpillCause.MEMORY: memory_seconds(holder, request),
        SpillCause.DECODE: decode,
    }
    return max(costs, key=costs.__getitem__)
