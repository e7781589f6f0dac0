"""Where a request goes in a fleet of prefill, decode and unified engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from gateway.disagg.decider import (
    LandingSite,
    Placement,
    Prices,
    landing_sites,
    local_placement,
    pays,
    remote_placement,
)
from gateway.disagg.impatience import Impatience
from gateway.disagg.links import Links
from gateway.types import Role
from policies.base import Candidate, RouteRequest
from policies.congestion import WINDOW, Decayed
from policies.cost import cold_seconds, prefill_seconds, step_seconds
from policies.prefix_affinity import PrefixAffinity, PrefixAffinityParams

BLOCKING = 2.0
"""Weight of what a prefill costs those who come to the engine meanwhile."""
PATIENCE_SECONDS = 2.0
PATIENCE_FACTOR = 3.0
"""Times its prefill alone on an idle engine: how long a request can wait."""
OWN_SHARE = 0.5
"""Of an engine's impatience, what is its own and not that of all engines of its role: enough of it
for an engine that serves whole requests to be spared the long prompts, whatever its role."""
HOSTED = 8.0
"""Seconds that an answer is worth whose pace later prefills are bound to spoil."""
BEARABLE = 0.7
"""Of the pace, up to where later prefills do no harm."""
HOSTED_TOKEN = 0.02
"""Seconds that each token of an answer costs at an engine that does nothing but prefill."""
_BUSIEST = 0.98


class HandoverPlacing(PrefixAffinity):
    """`prefix_affinity` over the engines of all roles together.

    What. It chooses the engine that computes the prompt, which is what waits in line and what the
    gate is for; a prefill engine costs what it costs with the best other one to generate, or
    without a handover, whichever is less. `pair` says which, as of the moment of release.

    To the terms of `prefix_affinity` come the transfer and these:

    - blocking: what a long prefill costs those who come to the engine meanwhile (see `Impatience`).
      Without it a long prompt is as welcome at an engine to which short ones keep coming as at one
      that has only long ones in line, and separate pools are no better than mixed ones
    - hosting: an answer at a prefill engine is stalled by the prompts that come there after it

    Roles are where this begins: with too many prefill engines some come to serve whole requests,
    and are spared the long ones; with too few, long prompts that would wait too long for them are
    computed where they are decoded.

    Args:
        roles: of each engine, by id.
        pace: seconds per output token that answers are to keep to; None when any will do.
    """

    def __init__(
        self,
        params: PrefixAffinityParams,
        roles: Mapping[str, Role],
        links: Links,
        pace: float | None = None,
    ) -> None:
        super().__init__(params)
        self.weights = params
        self._roles = roles
        self._links = links
        self._pace = pace
        self._impatience = Impatience()
        self._prefilled = {id: Decayed() for id in roles}
        self._price = 0.0

    def costs(
        self,
        request: RouteRequest,
        candidates: Sequence[Candidate],
        queues: Sequence[float],
        theta: float,
    ) -> tuple[list[float], list[float]]:
        _, company = super().costs(request, candidates, queues, 0.0)
        self._price = theta
        prices = self.prices(request, candidates, theta)
        sites = self._sites(request, candidates, prices)
        placements = [self._placement(request, each, sites, prices) for each in candidates]
        return [placement.terms.total for placement in placements], company

    def pair(
        self, request: RouteRequest, chosen: Candidate, candidates: Sequence[Candidate]
    ) -> Placement:
        """How the engine that was chosen is used, as of now.

        Args:
            request: as of its release.
            candidates: all engines that may generate.
        """
        prices = self.prices(request, [chosen], self._price)
        sites = self._sites(request, candidates, prices)
        return self._placement(request, chosen, sites, prices)

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        """The terms of each candidate's best placement, at the price of the last choice."""
        prices = self.prices(request, candidates, self._price)
        prices = replace(prices, spoil=self.weights.spoil)
        sites = self._sites(request, candidates, prices)
        placements = [self._placement(request, each, sites, prices) for each in candidates]
        matched = request.match.tokens
        return [
            {"matched_tokens": matched.get(each.prefill, 0.0)}
            | msgspec.structs.asdict(each.terms)
            | {"total": each.terms.total}
            for each in placements
        ]

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        super().placed(request, candidate)
        id, now = candidate.id, request.now
        matched = request.match.tokens.get(id, 0.0)
        self._prefilled[id].add(now, prefill_seconds(candidate, request.prompt_tokens, matched))
        cold = PATIENCE_FACTOR * cold_seconds(candidate, request.prompt_tokens)
        self._impatience.add(id, now, max(PATIENCE_SECONDS, cold))

    def prices(
        self, request: RouteRequest, candidates: Sequence[Candidate], theta: float
    ) -> Prices:
        weights = self.weights
        return Prices(
            theta=theta,
            eta=weights.eta,
            spoil=0.0,  # `choose` adds it where it can matter
            omega=weights.omega,
            blocking=self._blocking(candidates, request.now),
        )

    def computes_for_others(self, id: str) -> bool:
        return self._roles[id] is Role.PREFILL

    def _blocking(self, candidates: Sequence[Candidate], now: float) -> dict[str, float]:
        of = {id: self._impatience.at(id, now) for id in self._roles}
        means = {}
        for role in Role:
            own = [of[id] for id, each in self._roles.items() if each is role]
            means[role] = sum(own) / len(own) if own else 0.0
        return {
            each.id: BLOCKING
            * (OWN_SHARE * of[each.id] + (1.0 - OWN_SHARE) * means[self._roles[each.id]])
            for each in candidates
        }

    def _sites(
        self, request: RouteRequest, candidates: Sequence[Candidate], prices: Prices
    ) -> list[LandingSite]:
        generate = [each for each in candidates if not self.computes_for_others(each.id)]
        return landing_sites(request, generate, self._links.seconds, prices)

    def _placement(
        self,
        request: RouteRequest,
        candidate: Candidate,
        sites: Sequence[LandingSite],
        prices: Prices,
    ) -> Placement:
        """The best one in which this engine computes the prompt."""
        local = local_placement(request, candidate, prices)
        if not self.computes_for_others(candidate.id):
            return local
        hosting = self._hosting_seconds(request, candidate)
        local = msgspec.structs.replace(
            local, terms=msgspec.structs.replace(local.terms, hosting=hosting)
        )
        remote = remote_placement(request, candidate, sites, self._links.seconds, prices)
        if remote is None or not self.prefers(remote, local):
            return local
        return remote

    def prefers(self, remote: Placement, local: Placement) -> bool:
        return pays(remote.terms.total, local.terms.total)

    def _hosting_seconds(self, request: RouteRequest, candidate: Candidate) -> float:
        """What it costs that prompts which come later stall an answer."""
        busy = min(_BUSIEST, self._prefilled[candidate.id].at(request.now) / WINDOW)
        cost = HOSTED_TOKEN * busy * request.output_tokens
        if self._pace is None:
            return cost
        # Steps are made in what time the prefills leave.
        pace = step_seconds(candidate) / (1.0 - busy)
        share = pace / self._pace - BEARABLE
        return cost + HOSTED * min(1.0, max(0.0, share))
