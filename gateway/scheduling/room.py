"""Which backends have room for a request, under the limits of its class and of its length."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config import ClassLimits, LengthRange
from gateway.scheduling.cached import uncached_tokens
from gateway.scheduling.load import BackendLoad
from gateway.types import WorkClass
from policies.base import RouteRequest

_PREFILL = WorkClass.PREFILL


def with_room(
    backends: Sequence[BackendLoad],
    limits: ClassLimits,
    ranges: Sequence[LengthRange],
    request: RouteRequest,
) -> list[BackendLoad]:
    """The backends with a free slot and enough of the token budgets left.

    A request larger than a whole budget goes where nothing else counts against it: it would never
    go otherwise.
    """
    max_requests = limits.max_requests
    budget = limits.max_uncached_tokens
    prompt_tokens = request.prompt_tokens
    prefill = request.work_class is _PREFILL
    roomy = []
    for load in backends:
        own = load.prefill if prefill else load.decode
        # The whole prompt is an upper bound of what is uncached, and needs no look-up.
        if own.has_slot(max_requests) and (
            not own.pending
            or own.uncached_tokens + prompt_tokens <= budget
            or own.uncached_tokens + uncached_tokens(request, load.id) <= budget
        ):
            roomy.append(load)
    for length in ranges:
        if prompt_tokens >= length.min_tokens:
            roomy = [load for load in roomy if _fits(load, length, prompt_tokens)]
    return roomy


def has_room_for_answer(
    load: BackendLoad, limits: ClassLimits, ranges: Sequence[LengthRange], prompt_tokens: int
) -> bool:
    """Whether a backend can take a request whose prompt another one computes.

    Args:
        limits: of the decode class.
    """
    return load.decode.has_slot(limits.max_requests) and all(
        _fits(load, length, prompt_tokens)
        for length in ranges
        if prompt_tokens >= length.min_tokens
    )


def share_range(one: RouteRequest, other: RouteRequest, ranges: Sequence[LengthRange]) -> bool:
    """Whether two requests are so long that they count against a limit in common."""
    shorter = min(one.prompt_tokens, other.prompt_tokens)
    return any(shorter >= length.min_tokens for length in ranges)


def _fits(load: BackendLoad, length: LengthRange, prompt_tokens: int) -> bool:
    others = load.over(length.min_tokens)
    if not others.requests:
        return True
    if length.max_requests is not None and others.requests >= length.max_requests:
        return False
    share = length.max_cache_share
    return share is None or others.tokens + prompt_tokens <= share * load.capacity_tokens
