"""Which backends have room for a request, under the limits of its class."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config import ClassLimits
from gateway.scheduling.classify import uncached_tokens
from gateway.scheduling.load import BackendLoad
from gateway.types import WorkClass
from policies.base import RouteRequest

_PREFILL = WorkClass.PREFILL


def with_room(
    backends: Sequence[BackendLoad], limits: ClassLimits, request: RouteRequest
) -> list[BackendLoad]:
    """The backends with a free slot and enough of the token budget left.

    A request larger than the whole budget goes where nothing of its class is pending: it would
    never go otherwise.
    """
    max_requests = limits.max_requests
    budget = limits.max_uncached_tokens
    prompt_tokens = request.prompt_tokens
    prefill = request.work_class is _PREFILL
    roomy = []
    for load in backends:
        own = load.prefill if prefill else load.decode
        # The whole prompt is an upper bound of what is uncached, and needs no look-up.
        if own.in_flight < max_requests and (
            not own.pending
            or own.uncached_tokens + prompt_tokens <= budget
            or own.uncached_tokens + uncached_tokens(request, load.id) <= budget
        ):
            roomy.append(load)
    return roomy


def has_any_room(
    backends: Sequence[BackendLoad], limits: ClassLimits, work_class: WorkClass
) -> bool:
    """Whether a request of the class could go at all, if it brought no uncached tokens."""
    for load in backends:
        own = load.of(work_class)
        if own.in_flight < limits.max_requests and (
            not own.pending or own.uncached_tokens <= limits.max_uncached_tokens
        ):
            return True
    return False
