"""How much prefill work a request brings, the class that follows from it, and when it is due."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.config import Scheduling
from gateway.scheduling.load import BackendLoad
from gateway.types import WorkClass
from policies.base import RouteRequest
from policies.cost import cold_seconds, prefill_seconds


def appraise(
    request: RouteRequest,
    backends: Sequence[BackendLoad],
    settings: Scheduling,
    target: float | None = None,
) -> RouteRequest:
    """The request with its class and its deadline.

    Its class is `prefill` when it brings much prefill to every backend: a match makes it small,
    whatever its length, and a class never keeps a request from where its prefix is.

    Args:
        target: seconds from now in which the client wants its first token; None leaves it to the
            settings.
    """
    tokens = request.prompt_tokens
    matched = request.match.tokens
    # Most backends hold nothing of a prompt, and of those only the fastest matters.
    fastest = backends[0] if backends else _UNKNOWN
    for load in backends:
        if load.prefill_rate > fastest.prefill_rate:
            fastest = load
    cold = least = cold_seconds(fastest, tokens)
    # A match can only make it less, so one that is small without it need not be looked at.
    if matched and cold >= settings.prefill_seconds:
        for load in backends:
            held = matched.get(load.id)
            if held is not None:
                seconds = prefill_seconds(load, tokens, held)
                if seconds < least:
                    least = seconds
    if target is None:
        target = max(settings.target.seconds, settings.target.factor * cold)
    is_long = least >= settings.prefill_seconds
    return msgspec.structs.replace(
        request,
        work_class=WorkClass.PREFILL if is_long else WorkClass.DECODE,
        deadline=request.now + target,
    )


_UNKNOWN = BackendLoad("")
