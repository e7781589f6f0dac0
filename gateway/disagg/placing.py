"""Where a request goes in a fleet of prefill, decode and unified engines."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import msgspec

from gateway.disagg.decider import (
    LandingSite,
    Placement,
    Prices,
    computing,
    landing_sites,
    local_placement,
    patience_seconds,
    remote_placement,
)
from gateway.disagg.engines import Engines, transfers
from gateway.disagg.impatience import Impatience, Slacks
from gateway.types import Role
from policies.base import Candidate, RouteRequest
from policies.congestion import WINDOW, DecayedSums
from policies.cost import step_seconds
from policies.placed import Placed
from policies.prefix_affinity import PrefixAffinity, PrefixAffinityParams

MISSED = 20.0
"""Seconds that it is worth when a first token comes in time, or a stream keeps to its pace."""
FRESH = 0.25
"""Seconds for which a look at who comes where is good."""
OVERDUE = 0.1
"""What a second of waiting is worth when the first token is late whatever happens: little against
those who can still be in time, and enough to have it soon where nobody minds."""
TURNING = 5.0
"""Seconds that it costs to leave the line of one role for an engine of another. A prompt that waits
is looked at a few times a second, and without it goes as soon as a single look finds some engine of
the other role idle for a moment."""
HOSTED_LEAST = 5.0
"""Seconds that it costs at least to have a prefill engine serve all of a request: operators gave it
its role, and are to find it kept unless that is expensive."""
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
    without a handover, whichever is less. `pair` says which, as of the moment of release. Among
    candidates of which none is a prefill engine it is `prefix_affinity` itself.

    To the terms of `prefix_affinity` come the transfer and these:

    - blocking: who is made late by a long prefill, of those who come to the engine meanwhile (see
      `Impatience`). Without it a long prompt is as welcome at an engine to which short ones keep
      coming as at one that has only long ones in line, and separate pools are no better than mixed
      ones
    - late: the same for the request itself, by how long its wait is against what it can spare. It
      is what keeps a long prompt from a line of its like in which it would be late, while others
      can bear it. Once it is late whatever happens, its wait counts little: else it would be
      computed where others can still be in time
    - turning: to leave the line of one role for an engine of another
    - hosting: an answer at a prefill engine is stalled by the prompts that come there after it

    The congestion price is of the prefill's work alone: beside many streams it takes longer, but
    their steps would be made without it too.

    Roles are where this begins: with too many prefill engines some come to serve whole requests,
    and are spared the long ones; with too few, long prompts that would wait too long for them are
    computed where they are decoded.

    Args:
        engines: of all roles, as they are now.
    """

    def __init__(self, params: PrefixAffinityParams, engines: Engines) -> None:
        super().__init__(params)
        self.weights = params
        self.engines = engines
        self._impatience = Impatience()
        self._prefilled = DecayedSums()
        self._price = 0.0
        self._slacks: dict[str, Slacks] = {}
        self._looked = -FRESH

    def costs(
        self,
        request: RouteRequest,
        candidates: Sequence[Candidate],
        queues: Sequence[float],
        theta: float,
    ) -> tuple[list[float], list[float]]:
        if not any(self.computes_for_others(each.id) for each in candidates):
            return super().costs(request, candidates, queues, theta)
        self._price = theta
        prices = self.prices(request, candidates, theta)
        sites = self._sites(request, prices)
        placements = [self._placement(request, each, sites, prices) for each in candidates]
        terms = [placement.terms for placement in placements]
        return [each.total for each in terms], [each.queue + each.decode for each in terms]

    def spoil(self, candidates: Sequence[Candidate]) -> float:
        """As much as a first token in time, where prompts can be computed apart from streams: one
        that would spoil some is held, and late itself."""
        spoil = super().spoil(candidates)
        if not spoil or not any(self.computes_for_others(each.id) for each in candidates):
            return spoil
        return max(spoil, MISSED)

    def pair(
        self, request: RouteRequest, chosen: Candidate, tried: Collection[str] = ()
    ) -> Placement:
        """How the engine that was chosen is used, as of now.

        Args:
            request: as of its release.
            tried: engines that are not to generate.
        """
        prices = self.prices(request, [chosen], self._price)
        sites = [site for site in self._sites(request, prices) if site.id not in tried]
        return self._placement(request, chosen, sites, prices)

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        """The terms of each candidate's best placement, at the price of the last choice."""
        prices = self.prices(request, candidates, self._price)
        prices = replace(prices, spoil=self.spoil(candidates))
        sites = self._sites(request, prices)
        placements = [self._placement(request, each, sites, prices) for each in candidates]
        matched = request.match.tokens
        return [
            {"matched_tokens": matched.get(each.prefill, 0.0)}
            | msgspec.structs.asdict(each.terms)
            | {"total": each.terms.total}
            for each in placements
        ]

    def learn(self, placed: Placed, candidate: Candidate, now: float) -> None:
        super().learn(placed, candidate, now)
        self._prefilled.add(candidate.id, now, placed.prefill)
        patience = patience_seconds(candidate, placed.prompt_tokens)
        self._impatience.add(candidate.id, now, patience - placed.prefill)

    def prices(
        self, request: RouteRequest, candidates: Sequence[Candidate], theta: float
    ) -> Prices:
        weights = self.weights
        return Prices(
            theta=theta,
            eta=weights.eta,
            spoil=0.0,  # `choose` adds it where it can matter
            omega=weights.omega,
            missed=MISSED,
            overdue=OVERDUE,
            blocking=self._blocking(candidates, request.now),
        )

    def computes_for_others(self, id: str) -> bool:
        return self.engines.role(id) is Role.PREFILL

    def _blocking(self, candidates: Sequence[Candidate], now: float) -> dict[str, Slacks]:
        known = self._slacks
        if now - self._looked < FRESH and all(each.id in known for each in candidates):
            return known
        self._looked = now
        self._slacks = {each.id: self._impatience.at(each.id, now) for each in candidates}
        return self._slacks

    def _sites(self, request: RouteRequest, prices: Prices) -> list[LandingSite]:
        if request.alone:
            return []
        landings = self.engines.landings(request)
        return landing_sites(request, landings, transfers(self.engines, request.model), prices)

    def _placement(
        self,
        request: RouteRequest,
        candidate: Candidate,
        sites: Sequence[LandingSite],
        prices: Prices,
    ) -> Placement:
        """The best one in which this engine computes the prompt."""
        here, id = computing(request, candidate, prices), candidate.id
        prefills = self.computes_for_others(id)
        turning = TURNING if self._turns(request, prefills) else 0.0
        if not prefills:
            return local_placement(request, candidate, prices, here, turning=turning)
        hosting = self._hosting_seconds(request, candidate)
        local = local_placement(request, candidate, prices, here, hosting, turning)
        sites = [site for site in sites if self.engines.paired(id, site.id, request.model)]
        transfer = transfers(self.engines, request.model)
        remote = remote_placement(request, candidate, sites, transfer, prices, here, turning)
        if remote is None:
            return local
        return remote if not self.engines.serves_alone(id) or self.prefers(remote, local) else local

    def _turns(self, request: RouteRequest, prefills: bool) -> bool:
        """Whether it waits for an engine of the other kind."""
        line = request.line
        return line is not None and self.computes_for_others(line) is not prefills

    def prefers(self, remote: Placement, local: Placement) -> bool:
        return remote.terms.total < local.terms.total

    def _hosting_seconds(self, request: RouteRequest, candidate: Candidate) -> float:
        """What it costs that prompts which come later stall an answer."""
        busy = min(_BUSIEST, self._prefilled.at(candidate.id, request.now) / WINDOW)
        cost = HOSTED_LEAST + HOSTED_TOKEN * busy * request.output_tokens
        goal = self.engines.pace
        if goal is None:
            return cost
        # Steps are made in what time the prefills leave.
        pace = step_seconds(candidate) / (1.0 - busy)
        return cost + HOSTED * min(1.0, max(0.0, pace / goal - BEARABLE))
