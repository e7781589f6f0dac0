"""llm-d's sticky-until-saturated filter: the configuration that its baseline guide ships.

Rule. Keep to the backends that hold at least affinity_threshold of the prompt, if there are any,
unless the best of them is more than max_ttft_penalty behind the best of the others, in seconds of
tokens that wait there. Of those left the fewest uncached tokens wins, this request's included;
equal ones draw.
Source. llm-d/llm-d-router, prefix-cache-affinity-filter and token-load-scorer (v0.10, August 2026),
as in the optimized-baseline guide since then.
Simplified. What backends hold is our match. Exploration, off by default, is left out. The scorer
stops telling loads apart at 4,194,304 tokens, which is hours of work here.
Parameters. Defaults are the filter's; its throughput was measured with a 32B model on two H100,
and a calibration recipe replaces it.
Known weakness. 18 s is long against most targets for a first token, and below 80 % of the prompt
cached, reuse counts only as tokens saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from gateway.types import Decision
from loadtests.rivals.lowest_cost import (
    Drawn,
    Seeded,
    cheapest,
    matched_share,
    reason,
    uncached_tokens,
)
from policies.base import Candidate, Params, RouteRequest


class LlmdStickyParams(Seeded, frozen=True):
    affinity_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.8
    """Share of the prompt that makes a backend sticky."""
    max_ttft_penalty: Annotated[float, Meta(ge=0)] = 18.0
    """Seconds of wait, over the best other backend, that break it; 0 never breaks."""
    peak_prefill_throughput: Annotated[float, Meta(gt=0)] = 15_928.0
    """Tokens per second that turn tokens which wait into seconds."""


class LlmdSticky(Drawn[LlmdStickyParams]):
    """Stays where most of the prompt is cached until that is far behind; then the least load."""

    name: ClassVar[str] = "llm_d_sticky"
    params_type: ClassVar[type[Params]] = LlmdStickyParams

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        costs = [terms["cost"] for terms in self.explain(request, candidates)]
        kept = self._kept(request, candidates)
        within = [cost for each, cost in zip(candidates, costs, strict=True) if each in kept]
        chosen = self.pick(request, cheapest(kept, within))
        return Decision(chosen.id, reason(request, candidates, chosen), tuple(costs))

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        kept = self._kept(request, candidates)
        terms = []
        for candidate in candidates:
            pending, own = candidate.pending_tokens, uncached_tokens(request, candidate)
            terms.append(
                {"kept": candidate in kept, "pending": pending, "own": own, "cost": pending + own}
            )
        return terms

    def _kept(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
        """What the filter leaves."""
        params = self._params
        sticky: list[Candidate] = []
        others: list[Candidate] = []
        for candidate in candidates:
            held = matched_share(request, candidate) >= params.affinity_threshold
            (sticky if held else others).append(candidate)
        if not sticky:
            return candidates
        if others and params.max_ttft_penalty:
            behind = _least_pending(sticky) - _least_pending(others)
            if behind / params.peak_prefill_throughput > params.max_ttft_penalty:
                return candidates
        return sticky


def _least_pending(candidates: Sequence[Candidate]) -> float:
    return min(candidate.pending_tokens for candidate in candidates)
