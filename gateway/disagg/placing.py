"""Where a request goes in a fleet of prefill, decode and unified engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.disagg.decider import (
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
from policies.cost import cold_seconds
from policies.prefix_affinity import PrefixAffinity, PrefixAffinityParams

BLOCKING = 2.0
"""Weight of what a prefill costs those who come to the engine meanwhile."""
PATIENCE_SECONDS = 2.0
PATIENCE_FACTOR = 3.0
"""Times its prefill alone on an idle engine: how long a request can wait, at least."""


class HandoverPlacing(PrefixAffinity):
    """`prefix_affinity` over the engines of all roles together: it chooses the engine that computes
    the prompt, which is what waits in line and what the gate is for. Where that is a prefill
    engine, `pair` says at the moment of release which other one generates.

    Args:
        roles: of each engine, by id.
    """

    def __init__(
        self, params: PrefixAffinityParams, roles: Mapping[str, Role], links: Links
    ) -> None:
        super().__init__(params)
        self._weights = params
        self._roles = roles
        self._links = links
        self._impatience = Impatience(roles)
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
        placements = self.placements(request, candidates, prices)
        return [placement.terms.total for placement in placements], company

    def placements(
        self, request: RouteRequest, candidates: Sequence[Candidate], prices: Prices
    ) -> list[Placement]:
        """For each candidate, the best placement in which it computes the prompt."""
        generating = self.generating(candidates)
        sites = landing_sites(request, generating, self._links.seconds, prices)
        placements = []
        for each in candidates:
            remote = None
            if self._roles[each.id] is Role.PREFILL:
                remote = remote_placement(request, each, sites, self._links.seconds, prices)
            placements.append(remote or local_placement(request, each, prices))
        return placements

    def generating(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        return [each for each in candidates if self._roles[each.id] is not Role.PREFILL]

    def pair(
        self, request: RouteRequest, chosen: Candidate, candidates: Sequence[Candidate]
    ) -> Placement:
        """How the engine that was chosen is used, as of now.

        Args:
            request: as of its release.
            candidates: all engines that may generate, and `chosen`.
        """
        prices = self.prices(request, candidates, self._price)
        return self.placements(request, [chosen, *candidates], prices)[0]

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        super().placed(request, candidate)
        cold = PATIENCE_FACTOR * cold_seconds(candidate, request.prompt_tokens)
        self._impatience.add(candidate.id, request.now, max(PATIENCE_SECONDS, cold))

    def prices(
        self, request: RouteRequest, candidates: Sequence[Candidate], theta: float
    ) -> Prices:
        blocking = self._impatience.at(request.now, [each.id for each in candidates])
        weights = self._weights
        return Prices(
            theta=theta,
            eta=weights.eta,
            spoil=0.0,  # `choose` adds it where it can matter
            omega=weights.omega,
            blocking={id: BLOCKING * hurry for id, hurry in blocking.items()},
        )
