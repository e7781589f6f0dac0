"""LMetric: prefill tokens times batch size.

Rule. The lowest product of the uncached prompt tokens that the backend would then have to prefill
and of the requests that it would then have. A product needs no weight between its factors.
Source. "LMetric: Simple is Better" (SJTU and Alibaba, arXiv 2603.15202, March 2026); the authors'
Blitz router scores prefill_tokens(request, state) * (batch_size + 1).
Simplified. The authors' detection of hotspots, which they report to be rare, is left out.
Parameters. `count_pending`: whether tokens that wait there already count. The authors and the
agentic-kvc report count them. The ports to the SGLang gateway (ties by load, then by order, as
here) and to the llm-d router do not.
Known weakness. A prompt that is cached in full costs 0 on a backend with nothing pending, however
many streams it has; one stream less buys a recomputation when batches are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from loadtests.rivals.lowest_cost import LowestCost, cheapest, uncached_tokens
from policies.base import Candidate, Params, RouteRequest


class LMetricParams(Params, frozen=True):
    count_pending: bool = True
    """Whether uncached tokens already waiting at a backend count."""


class LMetric(LowestCost[LMetricParams]):
    """Takes the backend with the lowest product of prefill tokens and requests."""

    name: ClassVar[str] = "lmetric"
    params_type: ClassVar[type[Params]] = LMetricParams

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        terms = []
        for candidate in candidates:
            prefill = uncached_tokens(request, candidate)
            if self._params.count_pending:
                prefill += candidate.pending_tokens
            batch = candidate.in_flight + 1
            terms.append({"prefill": prefill, "batch": batch, "cost": prefill * batch})
        return terms

    def pick(self, request: RouteRequest, tied: Sequence[Candidate]) -> Candidate:
        return cheapest(tied, [candidate.in_flight for candidate in tied])[0]
