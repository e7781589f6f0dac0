"""LPWL, least prefill work left.

Rule. The backend with the fewest uncached prompt tokens before their first token, the new request's
included: pending + (prompt - cached). Equal ones: fewest requests, then in turn.
Source. The agentic-kvc report of May 2026 (unreviewed), policy `leastwork`.
Simplified. Nothing.
Parameters. None, which is the rule's claim.
Known weakness. Decode does not count: streams pile up where prompts are cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from loadtests.rivals.lowest_cost import InTurn, cheapest, uncached_tokens
from policies.base import Candidate, RouteRequest


class LeastPrefillWork(InTurn):
    """Takes the backend that will have the fewest tokens left to prefill."""

    name: ClassVar[str] = "least_prefill_work"

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        terms = []
        for candidate in candidates:
            pending, own = candidate.pending_tokens, uncached_tokens(request, candidate)
            terms.append({"pending": pending, "own": own, "cost": pending + own})
        return terms

    def pick(self, request: RouteRequest, tied: Sequence[Candidate]) -> Candidate:
        fewest = cheapest(tied, [candidate.in_flight for candidate in tied])
        return super().pick(request, fewest)
