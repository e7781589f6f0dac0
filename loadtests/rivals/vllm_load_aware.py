"""The load-aware router of the vLLM production stack.

Rule. The highest of matched / prompt - beta * (requests - mean) / max(1, mean). Where nobody holds
anything of the prompt: the session's hash, or else the lowest request rate of the last minute.
Source. vllm-project/production-stack, src/vllm_router/routers/routing_logic.py (LoadAwareRouter,
pull request 1035, August 2026).
Simplified. What backends hold is our match, where theirs is LMCache's lookup.
Parameters. beta 1: at twice the mean load a full cache hit is given up. Equal scores go to the
first id.
Known weakness. Requests are counted whatever their length; and where load is low in absolute terms
but uneven, one request more or less costs a whole cache hit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from gateway.types import Decision, Reason
from loadtests.rivals.arrivals import Arrivals
from loadtests.rivals.lowest_cost import LowestCost, matched_share
from policies.base import Candidate, Params, RouteRequest
from policies.rendezvous import highest

RATE_WINDOW = 60.0


class VllmLoadAwareParams(Params, frozen=True):
    beta: Annotated[float, Meta(ge=0)] = 1.0
    """Share of a prompt's reuse that is given up for load that is once the mean above the mean."""


class VllmLoadAware(LowestCost[VllmLoadAwareParams]):
    """Weighs the share that is cached against load relative to the mean."""

    name: ClassVar[str] = "vllm_load_aware"
    params_type: ClassVar[type[Params]] = VllmLoadAwareParams

    def __init__(self, params: VllmLoadAwareParams) -> None:
        super().__init__(params)
        self._arrivals = Arrivals(RATE_WINDOW)

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        if any(matched_share(request, candidate) for candidate in candidates):
            return super().choose(request, candidates)
        if request.session:
            return Decision(highest(request.session.encode(), candidates).id, Reason.SESSION)
        fewest = self._arrivals.fewest(request.now, candidates)
        return Decision(fewest.id, Reason.LOAD if len(candidates) > 1 else Reason.ONLY)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        self._arrivals.add(request.now, candidate.id)

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        mean = sum(candidate.in_flight for candidate in candidates) / len(candidates)
        terms = []
        for candidate in candidates:
            matched = matched_share(request, candidate)
            load = (candidate.in_flight - mean) / max(1.0, mean)
            cost = self._params.beta * load - matched
            terms.append({"matched": matched, "load": load, "cost": cost})
        return terms

    def pick(self, request: RouteRequest, tied: Sequence[Candidate]) -> Candidate:
        return min(tied, key=lambda candidate: candidate.id)
