"""Whether a request is prefilled where it decodes, or elsewhere, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import NamedTuple

import msgspec

from gateway.disagg.connector import Connector
from gateway.disagg.decider import (
    Prices,
    landing_sites,
    local_placement,
    pays,
    remote_placement,
)
from gateway.disagg.engines import TransferSeconds
from gateway.disagg.route import Route
from gateway.scheduling.cached import uncached_tokens
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from policies.base import RouteRequest
from policies.cost import prefill_seconds
from policies.prefix_affinity import PrefixAffinityParams


class Why(StrEnum):
    """Also a metric label, so the set is closed; why a connector refuses one is in `Refusal`."""

    WORTH = "worth"
    """What the decode engine lacks of the prompt is worth a handover."""
    NEEDED = "needed"
    """The decode engine serves nothing that was not prefilled elsewhere."""
    SHORT = "short"
    """What it lacks is not."""
    NO_PREFILL = "no_prefill"
    """No prefill engine is there to take it."""
    ROUTE = "route"
    """Requests of this route are not handed over."""
    SOONER = "sooner"
    """One engine serves it sooner, or at less cost to others."""
    HOSTED = "hosted"
    """A prefill engine serves all of it: that is sooner, or nobody else is there."""


class Fallback(StrEnum):
    """Why a request that was to be handed over is served by one engine; a metric label."""

    NO_PREFILL = "no_prefill"
    """No prefill engine takes requests now."""
    UNPAIRED = "unpaired"
    """None of them can be paired with the decode engine."""
    FULL = "full"
    """None of those has room."""
    BUSY = "busy"
    """The prefill engine had too much to do."""
    REFUSED = "refused"
    """It answered that it will not, or failed."""
    BROKEN = "broken"
    """It could not be reached, or its answer broke off."""
    SLOW = "slow"
    """It took several times as long as it should."""
    NO_TRANSFER = "no_transfer"
    """Its answer gives the decode engine nothing to fetch."""
    EXPIRED = "expired"
    """What it had computed would have been fetched too late."""
    DECODE = "decode"
    """The decode engine failed on what was handed over."""


class Placement(msgspec.Struct, frozen=True):
    """Attributes:
    prefill: the engine that prefills; None where the decode engine does.
    """

    prefill: BackendLoad | None
    why: str


class Remote(NamedTuple):
    """A prefill engine for a request whose decode engine is chosen.

    Attributes:
        connector: how the handover goes.
        lease: at the prefill engine, where it was chosen first; None while there is none.
    """

    load: BackendLoad
    connector: Connector
    route: Route
    lease: Lease | None = None


Decide = Callable[[RouteRequest, BackendLoad, Sequence[BackendLoad]], Placement]
"""Decides on a request whose decode engine is chosen, given the prefill engines that can be paired
with it and have room. Where there is none, `NO_PREFILL` says that one was wanted."""


def by_threshold(least: int) -> Decide:
    """Remote from `least` uncached tokens at the decode engine on; 0 makes all requests remote."""

    def decide(
        request: RouteRequest, decode: BackendLoad, prefills: Sequence[BackendLoad]
    ) -> Placement:
        if uncached_tokens(request, decode.id) < least:
            return Placement(None, Why.SHORT)
        if not prefills:
            return Placement(None, Why.NO_PREFILL)
        return Placement(soonest(request, prefills), Why.WORTH)

    return decide


def by_cost(transfers: Callable[[str], TransferSeconds]) -> Decide:
    """Remote where that is expected to be cheaper, in seconds.

    Args:
        transfers: how long they take, by model.
    """
    weights = PrefixAffinityParams()
    prices = Prices(eta=weights.eta, spoil=weights.spoil, omega=weights.omega)

    def decide(
        request: RouteRequest, decode: BackendLoad, prefills: Sequence[BackendLoad]
    ) -> Placement:
        transfer = transfers(request.model)
        sites = landing_sites(request, (decode,), transfer, prices)
        ways = [
            (way.terms.total, load)
            for load in prefills
            if (way := remote_placement(request, load, sites, transfer, prices)) is not None
        ]
        local = local_placement(request, decode, prices).terms.total
        if not ways:
            return Placement(None, Why.SOONER)
        remote, load = min(ways, key=itemgetter(0))
        return Placement(load, Why.WORTH) if pays(remote, local) else Placement(None, Why.SOONER)

    return decide


def soonest(request: RouteRequest, prefills: Sequence[BackendLoad]) -> BackendLoad:
    """The engine at which a prompt would be prefilled first."""

    def seconds(load: BackendLoad) -> float:
        matched = request.match.tokens.get(load.id, 0.0)
        own = prefill_seconds(load, request.prompt_tokens, matched)
        return load.queue_seconds(request) + own

    return min(prefills, key=seconds)
