"""What other gateways do: always a handover, or from a fixed number of uncached tokens on.

All go through the same scheduling as ours: lines in the order of deadlines, the gate, and streams
that are spared. `FixedThreshold` also places by the same costs as ours does, so that what differs
is the rule alone; `DecodeFirst` places as gateways with such a rule do.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.disagg.decider import Placement, Prices, landing_sites, remote_placement
from gateway.disagg.engines import Engines, transfers
from gateway.disagg.placing import HandoverPlacing
from policies.base import Candidate, RouteRequest
from policies.cost import placement_seconds, prefill_seconds
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


class DecodeFirst(HandoverPlacing):
    """The decode engine is chosen first, by what it holds and how busy it is, as if there were no
    other engines. If it lacks so much of the prompt that the threshold says so, the prefill engine
    follows at which that would be computed soonest.

    Args:
        threshold: uncached tokens; 0 makes it always.
    """

    def __init__(self, params: PrefixAffinityParams, engines: Engines, threshold: int) -> None:
        super().__init__(params, engines)
        self._threshold = threshold

    def costs(
        self,
        request: RouteRequest,
        candidates: Sequence[Candidate],
        queues: Sequence[float],
        theta: float,
    ) -> tuple[list[float], list[float]]:
        self._price = theta
        computes = self._decode(request, candidates) or candidates[0]
        lacking = request.prompt_tokens - request.match.tokens.get(computes.id, 0.0)
        prefills = [each for each in candidates if self.computes_for_others(each.id)]
        if lacking >= self._threshold and prefills:
            computes = min(prefills, key=lambda each: _ready_seconds(request, each))
        costs = [0.0 if each is computes else _RULED_OUT for each in candidates]
        return costs, [0.0] * len(candidates)

    def pair(
        self, request: RouteRequest, chosen: Candidate, tried: Collection[str] = ()
    ) -> Placement:
        landings = [each for each in self.engines.landings(request) if each.id not in tried]
        decode = self._decode(request, landings)
        if decode is None or not self.computes_for_others(chosen.id):
            return super().pair(request, chosen, tried)
        transfer, prices = transfers(self.engines, request.model), Prices()
        sites = landing_sites(request, [decode], transfer, prices)
        placement = remote_placement(request, chosen, sites, transfer, prices)
        assert placement is not None
        return placement

    def _decode(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Candidate | None:
        """None when no decode engine has room."""
        decode = [each for each in candidates if not self.computes_for_others(each.id)]
        if not decode:
            return None
        weights = self.weights
        queues = [each.queue_seconds(request) for each in decode]
        costs, _ = placement_seconds(
            request, decode, queues, self._price, weights.eta, weights.omega
        )
        return decode[costs.index(min(costs))]


def _ready_seconds(request: RouteRequest, candidate: Candidate) -> float:
    matched = request.match.tokens.get(candidate.id, 0.0)
    own = prefill_seconds(candidate, request.prompt_tokens, matched)
    return candidate.queue_seconds(request) + own
