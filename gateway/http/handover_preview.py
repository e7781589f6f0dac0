"""How a request would be handed over, for people who ask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.disagg.fleet_engines import FleetEngines
from gateway.disagg.reasons import Why
from gateway.disagg.refusal import Refusal
from gateway.http.joint_routing import Foreseen, JointRouting
from gateway.http.prefill_router import PrefillRouter
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.types import Role
from policies.base import RouteRequest


class HandoverPreview:
    """Args:
    prefills: the prefill engines that can take requests now, by model; a model that no prefill
        engine serves is missing.
    routing, router: who would see to it, under a policy that chooses both engines and under others.
    """

    def __init__(
        self,
        engines: FleetEngines,
        prefills: Mapping[str, Sequence[BackendLoad]],
        routing: JointRouting,
        router: PrefillRouter,
    ) -> None:
        self._engines = engines
        self._prefills = prefills
        self._routing = routing
        self._router = router

    def why_alone(self, method: str, path: str, body: bytes, pool: Pool) -> Why | Refusal | None:
        """Why no handover would carry a request; None where one would, or none is ever made."""
        prefills = self._prefills.get(pool.model)
        return self._engines.why_alone(method, path, body, prefills) if prefills else None

    def foresee(
        self, request: RouteRequest, pool: Pool, chosen: str, alone: Why | Refusal | None
    ) -> Foreseen | None:
        """How the backend that a policy has chosen would be used; None where no prefill engine
        serves the model.

        Args:
            alone: why no handover carries the request.
        """
        prefills = self._prefills.get(pool.model)
        if prefills is None:
            return None
        if pool.screen is not None:
            return self._routing.foresee(request, pool, chosen, alone)
        if self._engines.role(chosen) is not Role.DECODE:
            return Foreseen(chosen, chosen, self._engines.why_local(chosen, prefills))
        if alone is not None:
            return Foreseen(chosen, chosen, alone)
        choice = self._router.foresee(request, chosen, prefills)
        prefill = chosen if choice.engine is None else choice.engine.id
        return Foreseen(prefill, chosen, choice.why)
