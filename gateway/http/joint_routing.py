"""Requests whose policy chooses the engines of both legs together: what the one that they have a
lease at is to do for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from gateway.disagg.fleet_engines import FleetEngines
from gateway.disagg.placing import HandoverPlacing
from gateway.disagg.prefill_choice import RemotePrefill
from gateway.disagg.reasons import Why
from gateway.disagg.refusal import Refusal
from gateway.disagg.route import Route, route_of
from gateway.http.context import RequestContext
from gateway.http.prefill_router import Stranded, leave_alone
from gateway.scheduling.cached import anchor
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.types import Clock, Role
from policies.base import RouteRequest

_OF_AN_ENGINE = frozenset({Why.WORTH, Why.NEEDED, Why.SOONER, Why.HOSTED})
"""Reasons that hold for one choice of engines, and not for the next one after a failure."""


class Foreseen(NamedTuple):
    """Attributes:
    prefill, decode: ids of the engines; the same without a handover.
    why: one of `Why`, `Fallback` or `Refusal`.
    """

    prefill: str
    decode: str
    why: str


class JointRouting:
    """For pools with a `screen`: those of models that prefill engines serve, under such a policy.

    Args:
        prefills: the prefill engines that can take requests now, by model.
        loads: the ledgers, by backend id.
        policy: None where it is one that chooses one engine.
    """

    def __init__(
        self,
        *,
        engines: FleetEngines,
        prefills: Mapping[str, Sequence[BackendLoad]],
        loads: Mapping[str, BackendLoad],
        policy: Callable[[], HandoverPlacing | None],
        clock: Clock,
    ) -> None:
        self._engines = engines
        self._prefills = prefills
        self._loads = loads
        self._policy = policy
        self._clock = clock

    def appraise(self, context: RequestContext, pool: Pool) -> None:
        """Have the policy know whether a handover could carry a request at all.

        Raises:
            Stranded: none could, and nobody serves it without.
        """
        prefills = self._prefills.get(pool.model)
        if not prefills:
            return
        scope = context.scope
        why = self._engines.why_alone(scope["method"], scope["path"], context.body, prefills)
        if why is None:
            return
        leave_alone(context)
        context.record.placement_reason = why
        if isinstance(why, Refusal) and not self._engines.any_serves_alone(pool):
            raise Stranded(refusal=why)

    def arrange(self, context: RequestContext, pool: Pool, tried: Collection[str]) -> bool:
        """Settle how the engine is used that a request has its lease at. Where it is to be handed
        over, the request has a lease at its decode engine then, and the other one is in `remote`.

        Args:
            tried: engines that are not to generate.

        Returns:
            False when who could have generated was given to others meanwhile.

        Raises:
            Stranded: nobody is there who could.
        """
        policy, lease, request = self._policy(), context.lease, context.request
        assert policy is not None
        assert lease is not None
        assert request is not None
        id, record = lease.backend_id, context.record
        prefills = self._engines.role(id) is Role.PREFILL
        route = route_of(context.scope["method"], context.scope["path"])
        if prefills and route is not None:
            placement = policy.pair(
                structs.replace(request, now=self._clock()), self._loads[id], tried
            )
            if placement.is_remote:
                refused = self._hand_over(context, lease, placement.decode, route)
                if refused is None:
                    record.placement = "remote"
                    record.placement_reason = self._engines.why_remote(placement.decode)
                    return True
                record.placement_reason = refused
                if not self._engines.serves_alone(id):
                    raise Stranded(refusal=refused)
            elif not self._engines.serves_alone(id):
                if tried or not self._could_land(id, pool):
                    raise Stranded(None if context.tries is None else context.tries.cause)
                return False
        record.placement = "local"
        if not record.placement_reason or record.placement_reason in _OF_AN_ENGINE:
            able = self._prefills.get(pool.model, ())
            record.placement_reason = self._engines.why_local(id, able)
        return True

    def could_begin(
        self, pool: Pool, backends: Iterable[BackendLoad], tried: Collection[str]
    ) -> bool:
        """Whether any of these, with one that was not tried either, could serve a request."""
        return any(
            self._engines.serves_alone(load.id) or self._could_land(load.id, pool, tried)
            for load in backends
            if load.id not in tried
        )

    def stood_in(self, id: str) -> bool:
        """Whether a backend that was to answer is a prefill engine. It stands in for others, so
        that no request of theirs fails because it is slow or down."""
        return self._engines.is_prefill(id)

    def foresee(
        self, request: RouteRequest, pool: Pool, chosen: str, alone: Why | Refusal | None
    ) -> Foreseen:
        """What would be done for a request that has been sent to nobody, by the engine chosen.

        Args:
            alone: why no handover carries the request.
        """
        policy = self._policy()
        assert policy is not None
        placement = policy.pair(request, self._loads[chosen])
        if placement.is_remote:
            why = self._engines.why_remote(placement.decode)
            return Foreseen(placement.prefill, placement.decode, why)
        able = self._prefills.get(pool.model, ())
        return Foreseen(chosen, chosen, alone or self._engines.why_local(chosen, able))

    # how it is done

    def _hand_over(
        self, context: RequestContext, lease: Lease, decode: str, route: Route
    ) -> Refusal | None:
        """Take a lease at the decode engine; the one at the prefill engine goes with the handover.

        Returns:
            Why this pair's protocol does not carry the request; None where it does.
        """
        request, prefill = context.request, lease.backend_id
        assert request is not None
        connector = self._engines.connector(prefill, decode, request.model)
        assert connector is not None  # or they would not be a pair
        refused = connector.refuses(context.body, route)
        if refused is not None:
            return refused
        context.lease = lease.hand_over(self._loads[decode], anchor(request, decode))
        context.remote = RemotePrefill(self._loads[prefill], connector, route, lease)
        context.record.backend = decode
        return None

    def _could_land(self, prefill: str, pool: Pool, tried: Collection[str] = ()) -> bool:
        """Whether there is anybody to take over from a prefill engine, with room or without."""
        return any(
            self._engines.paired(prefill, load.id, pool.model)
            for load in pool.backends
            if load.id not in tried
        )
