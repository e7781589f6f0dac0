"""Minimum time to first token: Mooncake's Conductor, and GORGO within one site.

Rule. The backend with the lowest predicted time to first token: the prefill that waits there, plus
the request's own for what is not cached there.
Source. Mooncake (FAST 2025), Algorithm 1. GORGO (arXiv 2602.11688, February 2026) adds the round
trip to the backend; where all are equally far it is the same rule, so it has no file of its own.
Simplified. Prefill is predicted by the engine's true shape, where the authors fit a polynomial.
`kvcache_balancing_threshold` decides in Algorithm 1 when to fetch a prefix from another node's
store and when to copy a hot one; engines without such a store can do neither, so every backend
takes the branch that uses its own cache, and the threshold has nothing to decide. Rejection (429)
is not routing. Equal backends take turns, where the algorithm takes the first.
Parameters. None.
Known weakness. What a prefill costs those who come after does not count: under load, sessions
spill to idle backends and what could have been reused is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from loadtests.rivals.lowest_cost import InTurn
from policies.base import Candidate, RouteRequest
from policies.cost import own_prefill_seconds


class MinimumTtft(InTurn):
    """Takes the backend that is predicted to answer first."""

    name: ClassVar[str] = "minimum_ttft"

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        terms = []
        for candidate in candidates:
            queue = candidate.queue_seconds(request)
            own = own_prefill_seconds(request, candidate)
            terms.append({"queue": queue, "prefill": own, "cost": queue + own})
        return terms
