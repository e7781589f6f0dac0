"""Seconds to the first token, for the rules that predict them.

Their authors fit a polynomial per model and machine offline. The rules here get the true shape of
the engine instead: linear in the uncached tokens, with attention that grows with the position.
"""

from __future__ import annotations

from policies.base import Candidate, RouteRequest
from policies.cost import own_prefill_seconds


def first_token_seconds(request: RouteRequest, candidate: Candidate) -> float:
    """The queue, then the request's own prefill."""
    queue = candidate.queue_seconds(request)
    return queue + own_prefill_seconds(request, candidate)
