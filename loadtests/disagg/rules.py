"""What other gateways do: always a handover, or from a fixed number of uncached tokens on.

They place by the same costs as ours does, under the same scheduling: what differs is the rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.disagg.decider import Placement, Prices
from gateway.disagg.engines import Engines
from gateway.disagg.placing import HandoverPlacing
from policies.base import Candidate, RouteRequest
from policies.prefix_affinity import PrefixAffinityParams

_RULED_OUT = 1e6
"""Seconds: more than anything costs."""


class FixedThreshold(HandoverPlacing):
    """
    Args:
        threshold: tokens that no decode engine holds, from which on there is a handover; 0 makes
            it always.
    """

    def __init__(
        self,
        params: PrefixAffinityParams,
        engines: Engines,
        threshold: int,
    ) -> None:
        super().__init__(params, engines)
        self._threshold = threshold

    def costs(
        self,
        request: RouteRequest,
        candidates: Sequence[Candidate],
        queues: Sequence[float],
        theta: float,
    ) -> tuple[list[float], list[float]]:
        costs, company = super().costs(request, candidates, queues, theta)
        held = request.match.tokens
        elsewhere = [each.id for each in candidates if not self.computes_for_others(each.id)]
        most = max((held.get(id, 0.0) for id in elsewhere), default=0.0)
        remote = request.prompt_tokens - most >= self._threshold
        for place, each in enumerate(candidates):
            if self.computes_for_others(each.id) is not remote:
                costs[place] += _RULED_OUT
        return costs, company

    def prefers(self, remote: Placement, local: Placement) -> bool:
        """What comes to a prefill engine is handed over, whatever it costs."""
        return True

    def prices(
        self, request: RouteRequest, candidates: Sequence[Candidate], theta: float
    ) -> Prices:
        """A fixed rule sorts prompts by itself."""
        weights = self.weights
        return Prices(theta=theta, eta=weights.eta, spoil=0.0, omega=weights.omega)
