"""The engines of a fleet, as placing sees them."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.disagg.links import Links
from gateway.disagg.networks import Networks
from gateway.disagg.pairs import Pairs
from gateway.fleet.fleet import Fleet
from gateway.scheduling.load import BackendLoad
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
        return self._pairs.serves_alone(self._fleet.get(id))

    def paired(self, prefill: str, decode: str) -> bool:
        fleet = self._fleet
        return self._pairs.connector(fleet.get(prefill), fleet.get(decode)) is not None

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
        names = self._fleet.aliases.names(model)
        return self._networks.links(names[0] if names else model)

    def screen(self, request: RouteRequest, roomy: list[BackendLoad]) -> list[BackendLoad]:
        """Of the backends with room for a request, those that it can begin at: they serve all of
        it, or there is one to hand it over to."""
        able, landings = [], None
        for load in roomy:
            if self.serves_alone(load.id):
                able.append(load)
            elif self.role(load.id) is Role.PREFILL:
                if landings is None:
                    landings = self._landings_ids(request)
                if any(self.paired(load.id, id) for id in landings):
                    able.append(load)
        if not able and request.alone and not self._serve_alone(request.model):
            return roomy  # what needs neither handover nor prefill
        return able

    def _serve_alone(self, model: str) -> bool:
        pool = self._pools.get(model)
        return pool is not None and any(self.serves_alone(load.id) for load in pool.backends)

    def _landings_ids(self, request: RouteRequest) -> Sequence[str]:
        return [] if request.alone else [load.id for load in self.landings(request)]
