"""NVIDIA Dynamo's KV router.

Rule. The lowest number of blocks: those to prefill there, pending ones and the whole prompt less a
credit for what is cached, plus those that its requests occupy, this one included. With a
temperature it draws, by softmax over costs scaled to 0..1.
Source. ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector/default.rs, as of 1.6; the newest
stored version has the same formula.
Simplified. Costs are in tokens: the block size divides all terms alike. Occupied blocks are not
counted once when several running requests share them, since a policy does not see which requests
have finished. Output blocks are not tracked, as is their default. Tiers below the device, shared
caches and taints are left out.
Parameters. Named as their flags: overlap_score_credit 1, overlap_score_credit_decay 0,
prefill_load_scale 1, router_temperature 0; equal costs draw.
Known weakness. A cached token saves one prefill token but its block costs as much as ever, and an
occupied token, cheap to decode, weighs as much as one to prefill, so prompts leave their cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Annotated, ClassVar

from msgspec import Meta

from gateway.types import Decision
from loadtests.rivals.lowest_cost import Drawn, Seeded, matched_tokens, reason
from policies.base import Candidate, Params, RouteRequest

Weight = Annotated[float, Meta(ge=0)]


class DynamoParams(Seeded, frozen=True):
    overlap_score_credit: Weight = 1.0
    """Prefill tokens that a cached token takes off the cost."""
    overlap_score_credit_decay: Weight = 0.0
    """How fast the credit falls with the prefill that waits, in units of this prompt's length."""
    prefill_load_scale: Weight = 1.0
    """Weight of prefill against occupied blocks."""
    router_temperature: Weight = 0.0
    """0 takes the lowest cost; above, the draw is the more even the higher it is."""


class Dynamo(Drawn[DynamoParams]):
    """Takes the backend with the fewest blocks to prefill and to keep."""

    name: ClassVar[str] = "dynamo"
    params_type: ClassVar[type[Params]] = DynamoParams

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        params = self._params
        least_pending = min(candidate.pending_tokens for candidate in candidates)
        terms = []
        for candidate in candidates:
            pending = candidate.pending_tokens
            excess = (pending - least_pending) / max(request.prompt_tokens, 1)
            credit = params.overlap_score_credit / (1 + params.overlap_score_credit_decay * excess)
            overlap = credit * matched_tokens(request, candidate)
            prefill = max(0.0, pending + request.prompt_tokens - overlap)
            occupied = candidate.context_tokens + request.prompt_tokens
            cost = params.prefill_load_scale * prefill + occupied
            terms.append({"prefill": prefill, "occupied": occupied, "cost": cost})
        return terms

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        temperature = self._params.router_temperature
        if temperature == 0.0:
            return super().choose(request, candidates)
        costs = [terms["cost"] for terms in self.explain(request, candidates)]
        lowest = min(costs)
        scale = temperature * ((max(costs) - lowest) or 1.0)
        weights = [exp(-(cost - lowest) / scale) for cost in costs]
        [chosen] = self._random.choices(candidates, weights)
        return Decision(chosen.id, reason(request, candidates, chosen), tuple(costs))
