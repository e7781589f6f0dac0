"""The engines of a fleet, as placing sees them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from gateway.disagg.connector import Connector
from gateway.disagg.links import Links
from gateway.disagg.model_at import adapter_at, model_at
from gateway.disagg.networks import Networks
from gateway.disagg.pairs import Pairs
from gateway.disagg.reasons import Why
from gateway.disagg.refusal import Refusal
from gateway.disagg.route import route_of
from gateway.fleet.fleet import Fleet
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.pools import Pools
from gateway.types import Role
from policies.base import RouteRequest


class FleetEngines:
    """Satisfies `gateway.disagg.engines.Engines`."""

    def __init__(self, fleet: Fleet, pools: Pools, pairs: Pairs, networks: Networks) -> None:
        self._fleet = fleet
        self._pools = pools
        self._pairs = pairs
        self._networks = networks

    def __deepcopy__(self, memo: dict[int, object]) -> FleetEngines:
        """A policy that is copied to see what it would decide looks at the same fleet."""
        return self

    @property
    def pace(self) -> float | None:
        return self._pools.scheduling.pace

    def role(self, id: str) -> Role:
        return self._fleet.get(id).role

    def serves_alone(self, id: str) -> bool:
        """False of one that is gone."""
        backend = self._fleet.find(id)
        return backend is not None and self._pairs.serves_alone(backend)

    def any_serves_alone(self, pool: Pool) -> bool:
        """Whether anybody serves requests of a pool without a handover, busy or not."""
        return any(self.serves_alone(load.id) for load in pool.members)

    def is_prefill(self, id: str) -> bool:
        """Also of an engine that may be gone, which is none."""
        return any(each.id == id and each.role is Role.PREFILL for each in self._fleet)

    def connector(self, prefill: str, decode: str, model: str) -> Connector | None:
        """How a handover between two engines goes; None when there is to be none now.

        Args:
            model: as clients have it.
        """
        computes, generates = self._fleet.get(prefill), self._fleet.get(decode)
        names = self._fleet.aliases.names(model)
        # One alias may be an adapter here and another one there, whose caches are not the same.
        if names and adapter_at(computes, names) != adapter_at(generates, names):
            return None
        return self._pairs.connector(computes, generates)

    def paired(self, prefill: str, decode: str, model: str) -> bool:
        return self.connector(prefill, decode, model) is not None

    def why_alone(
        self, method: str, path: str, body: bytes, prefills: Iterable[BackendLoad]
    ) -> Why | Refusal | None:
        """Why none of these prefill engines works for a request; None where one does."""
        route = route_of(method, path)
        if route is None:
            return Why.ROUTE
        spoken = {
            connector.name: connector
            for load in prefills
            if (connector := self._pairs.speaks(self._fleet.get(load.id))) is not None
        }
        refusals = [connector.refuses(body, route) for connector in spoken.values()]
        return refusals[0] if refusals and None not in refusals else None

    def why_remote(self, decode: str) -> Why:
        """Why a request is handed over to an engine."""
        return Why.WORTH if self.serves_alone(decode) else Why.NEEDED

    def why_local(self, id: str, prefills: Collection[BackendLoad]) -> Why:
        """Why an engine serves all of a request that a handover could carry.

        Args:
            prefills: the prefill engines that can take requests now.
        """
        if self.role(id) is Role.PREFILL:
            return Why.HOSTED
        return Why.SOONER if prefills else Why.NO_PREFILL

    def overlaps(self, decode: str) -> bool:
        connector = self._pairs.speaks(self._fleet.get(decode))
        return connector is not None and connector.overlaps

    def landings(self, request: RouteRequest) -> list[BackendLoad]:
        pool = self._pools.get(request.model)
        if pool is None:
            return []
        return [
            load
            for load in pool.backends
            if self.role(load.id) is Role.DECODE and pool.takes_answer(load, request)
        ]

    def links(self, model: str) -> Links:
        """Args:
        model: as clients call it.
        """
        pool = self._pools.get(model)
        members = () if pool is None else pool.members
        computes = next((each.id for each in members if self.role(each.id) is Role.PREFILL), "")
        return self._networks.links(model_at(self._fleet, computes, model))

    def screen(self, request: RouteRequest, roomy: list[BackendLoad]) -> list[BackendLoad]:
        """Of the backends with room for a request, those that it can begin at: they serve all of
        it, or there is one to hand it over to."""
        able, landings = [], None
        for load in roomy:
            if self.serves_alone(load.id):
                able.append(load)
            elif self.role(load.id) is Role.PREFILL:
                if landings is None:
                    landings = self._landing_ids(request)
                if any(self.paired(load.id, id, request.model) for id in landings):
                    able.append(load)
        if not able and request.alone and not self._serve_alone(request.model):
            return roomy  # what needs neither handover nor prefill
        return able

    def _serve_alone(self, model: str) -> bool:
        pool = self._pools.get(model)
        return pool is not None and any(self.serves_alone(load.id) for load in pool.backends)

    def _landing_ids(self, request: RouteRequest) -> Sequence[str]:
        return [] if request.alone else [load.id for load in self.landings(request)]
