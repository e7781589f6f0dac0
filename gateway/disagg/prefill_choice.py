"""Where a request is prefilled whose decode engine is chosen: there, or at a prefill engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import msgspec

from gateway.disagg.connector import Connector
from gateway.disagg.decider import (
    Prices,
    landing_sites,
    local_placement,
    remote_placement,
)
from gateway.disagg.engines import TransferSeconds
from gateway.disagg.reasons import Why
from gateway.disagg.route import Route
from gateway.scheduling.cached import uncached_tokens
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from policies.base import RouteRequest
from policies.cost import own_prefill_seconds
from policies.prefix_affinity import PrefixAffinityParams


class PrefillChoice(msgspec.Struct, frozen=True):
    """Attributes:
    engine: the prefill engine; None where the decode engine does it.
    why: one of `Why`, `Fallback` or `Refusal`.
    """

    engine: BackendLoad | None
    why: str


class RemotePrefill(NamedTuple):
    """What a prefill leg is begun with.

    Attributes:
        load: of the prefill engine.
        connector: how the handover goes.
        lease: at the prefill engine, where it was chosen first; None while there is none.
    """

    load: BackendLoad
    connector: Connector
    route: Route
    lease: Lease | None = None


ChoosePrefill = Callable[[RouteRequest, BackendLoad, Sequence[BackendLoad]], PrefillChoice]
"""Given a request, its decode engine, and the prefill engines that can be paired with that one and
have room. Where there is none, `NO_PREFILL` says that one was wanted."""


def by_threshold(least: int) -> ChoosePrefill:
    """Remote from `least` uncached tokens at the decode engine on; 0 makes all requests remote."""

    def choose(
        request: RouteRequest, decode: BackendLoad, prefills: Sequence[BackendLoad]
    ) -> PrefillChoice:
        if uncached_tokens(request, decode.id) < least:
            return PrefillChoice(None, Why.SHORT)
        if not prefills:
            return PrefillChoice(None, Why.NO_PREFILL)
        return PrefillChoice(soonest(request, prefills), Why.WORTH)

    return choose


def by_cost(transfers: Callable[[str], TransferSeconds]) -> ChoosePrefill:
    """Remote where that is expected to be cheaper, in seconds.

    Args:
        transfers: how long they take, by model.
    """
    weights = PrefixAffinityParams()
    prices = Prices(eta=weights.eta, spoil=weights.spoil, omega=weights.omega)

    def choose(
        request: RouteRequest, decode: BackendLoad, prefills: Sequence[BackendLoad]
    ) -> PrefillChoice:
        transfer = transfers(request.model)
        sites = landing_sites(request, (decode,), transfer, prices)
        ways = [
            (way.terms.total, load)
            for load in prefills
            if (way := remote_placement(request, load, sites, transfer, prices)) is not None
        ]
        if not ways:
            return PrefillChoice(None, Why.SOONER)
        remote, load = min(ways, key=itemgetter(0))
        local = local_placement(request, decode, prices).terms.total
        return PrefillChoice(load, Why.WORTH) if remote < local else PrefillChoice(None, Why.SOONER)

    return choose


def soonest(request: RouteRequest, prefills: Sequence[BackendLoad]) -> BackendLoad:
    """The engine at which a prompt would be prefilled first."""
    return min(
        prefills,
        key=lambda load: load.queue_seconds(request) + own_prefill_seconds(request, load),
    )
