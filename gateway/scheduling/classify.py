"""How much prefill work a request brings, and the class that follows from it."""

from __future__ import annotations

from gateway.types import WorkClass
from policies.base import RouteRequest


def classify(uncached_tokens: float, threshold: int) -> WorkClass:
    """The class of a request.

    Args:
        uncached_tokens: prompt tokens less the best match any backend has.
        threshold: from this many on, it is prefill work.
    """
    return WorkClass.PREFILL if uncached_tokens >= threshold else WorkClass.DECODE


def uncached_tokens(request: RouteRequest, backend_id: str) -> int:
    """Prompt tokens that one backend would have to prefill, in whole tokens."""
    matched = request.match.tokens.get(backend_id)
    if matched is None:
        return request.prompt_tokens
    return max(0, request.prompt_tokens - int(matched))
