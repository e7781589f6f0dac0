"""Where a request is prefilled, given the engine that is to decode it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from msgspec import structs

from gateway.disagg.pairs import Pairs
from gateway.disagg.placement import Decide, Fallback, Placement, Remote, Why, soonest
from gateway.disagg.placing import HandoverPlacing
from gateway.disagg.refusal import Refusal
from gateway.disagg.route import route_of
from gateway.fleet.fleet import Fleet
from gateway.http.context import RequestContext, Tries
from gateway.scheduling.cached import anchor, uncached_tokens
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.telemetry.metrics import Metrics
from gateway.types import Clock, Role
from policies.base import RouteRequest
from policies.cost import prefill_seconds

_OF_AN_ENGINE = frozenset({Why.WORTH, Why.NEEDED, Why.SOONER, Why.HOSTED})
"""Reasons that hold for one choice of engines, and not for the next one after a failure."""


class Stranded(Exception):
    """The decode engine cannot serve the request without a handover, and there is none.

    Attributes:
        cause: how the last prefill leg failed, where there was one.
        refusal: why no handover carries such a request, where it is that.
    """

    def __init__(self, cause: BaseException | None = None, refusal: Refusal | None = None) -> None:
        super().__init__(str(refusal or cause))
        self.cause = cause
        self.refusal = refusal


class Share:
    """What a request brings to prefill at its decode engine: all of it, or nothing."""

    def __init__(self, tokens: int, seconds: float) -> None:
        self._tokens = tokens
        self._seconds = seconds

    def here(self, lease: Lease) -> None:
        if lease.uncached_tokens != self._tokens:
            lease.reprice(self._tokens, self._seconds)

    def elsewhere(self, lease: Lease) -> None:
        lease.reprice(0, 0.0)
        lease.prefill_due = inf  # as long as the other engine is at it


class Foreseen(NamedTuple):
    """Attributes:
    prefill, decode: ids of the engines; the same without a handover.
    why: one of `Why`, `Fallback` or `Refusal`.
    """

    prefill: str
    decode: str
    why: str


class Placing:
    """Args:
    prefills: the prefill engines that can take requests now, by model; a model that no prefill
        engine serves is missing.
    loads: the ledgers, by backend id.
    decide: compares the two ways for a request whose decode engine is chosen.
    joint: the policy, where it is one that chooses both engines together.
    max_requests: prefill legs that one engine may have at a time, as of now.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        pairs: Pairs,
        prefills: Mapping[str, Sequence[BackendLoad]],
        loads: Mapping[str, BackendLoad],
        decide: Decide,
        joint: Callable[[], HandoverPlacing | None],
        metrics: Metrics,
        max_requests: Callable[[], int],
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._pairs = pairs
        self._prefills = prefills
        self._loads = loads
        self._decide = decide
        self._joint = joint
        self._metrics = metrics
        self._max_requests = max_requests
        self._clock = clock

    # where the policy chooses both engines together

    def appraise(self, context: RequestContext, pool: Pool) -> None:
        """Have the policy know whether a handover could carry a request at all.

        Raises:
            Stranded: none could, and nobody serves it without.
        """
        prefills = self._prefills.get(pool.model)
        if not prefills or self._joint() is None:
            return
        scope = context.scope
        why = self._why_alone(scope["method"], scope["path"], context.body, prefills)
        if why is None:
            return
        self._leave_alone(context)
        context.record.placement_reason = why
        backends = (*pool.backends, *pool.avoided)
        if isinstance(why, Refusal) and not any(self.serves_alone(each.id) for each in backends):
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
        joint, lease, request = self._joint(), context.lease, context.request
        assert lease is not None
        assert request is not None
        id = lease.backend_id
        if joint is None or pool.model not in self._prefills:
            return True
        record, now = context.record, self._clock()
        prefills = self._fleet.get(id).role is Role.PREFILL
        if prefills and record.placement_reason != Why.ROUTE:
            placement = joint.pair(structs.replace(request, now=now), self._loads[id], tried)
            if placement.is_remote:
                refused = self._hand_over(context, lease, placement.decode)
                if refused is None:
                    record.placement = "remote"
                    record.placement_reason = self._why_remote(placement.decode)
                    return True
                record.placement_reason = refused
                if not self.serves_alone(id):
                    raise Stranded(refusal=refused)
            elif not self.serves_alone(id):
                if tried or not self._could_land(id, pool):
                    raise Stranded(None if context.tries is None else context.tries.cause)
                return False
        record.placement = "local"
        if not record.placement_reason or record.placement_reason in _OF_AN_ENGINE:
            record.placement_reason = self._why_local(id, pool)
        return True

    def _hand_over(self, context: RequestContext, lease: Lease, decode: str) -> Refusal | None:
        """Take a lease at the decode engine; the one at the prefill engine goes with the handover.

        Returns:
            Why this pair's protocol does not carry the request; None where it does.
        """
        request, scope = context.request, context.scope
        assert request is not None
        route = route_of(scope["method"], scope["path"])
        connector = self._pairs.connector(
            self._fleet.get(lease.backend_id), self._fleet.get(decode)
        )
        assert route is not None  # or it would have been left alone
        assert connector is not None  # or they would not be a pair
        refused = connector.refuses(context.body, route)
        if refused is not None:
            return refused
        context.lease = lease.hand_over(self._loads[decode], anchor(request, decode))
        context.remote = Remote(self._loads[lease.backend_id], connector, route, lease)
        context.record.backend = decode
        return None

    def _why_alone(
        self, method: str, path: str, body: bytes, prefills: Sequence[BackendLoad]
    ) -> Why | Refusal | None:
        """Why no handover carries a request; None where one does."""
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

    def _why_remote(self, decode: str) -> Why:
        return Why.WORTH if self.serves_alone(decode) else Why.NEEDED

    def _why_local(self, id: str, pool: Pool) -> Why:
        """Why an engine serves all of a request that a handover could carry."""
        if self._fleet.get(id).role is Role.PREFILL:
            return Why.HOSTED
        return Why.SOONER if self._prefills.get(pool.model) else Why.NO_PREFILL

    def could_begin(
        self, pool: Pool, backends: Iterable[BackendLoad], tried: Collection[str]
    ) -> bool:
        """Whether any of these, with one that was not tried either, could serve a request."""
        return any(
            self.serves_alone(load.id) or self._could_land(load.id, pool, tried)
            for load in backends
            if load.id not in tried
        )

    def _could_land(self, prefill: str, pool: Pool, tried: Collection[str] = ()) -> bool:
        """Whether there is anybody to take over from a prefill engine, with room or without."""
        engine = self._fleet.get(prefill)
        return any(
            self._pairs.connector(engine, self._fleet.get(load.id)) is not None
            for load in pool.backends
            if load.id not in tried
        )

    def stood_in(self, id: str) -> bool:
        """Whether a backend that was to answer is a prefill engine. It stands in for others, so
        that no request of theirs fails because it is slow or down."""
        return any(each.id == id and each.role is Role.PREFILL for each in self._fleet)

    def share(self, context: RequestContext, decode: str) -> Share:
        """What a request would bring to prefill at its decode engine."""
        request = context.request
        assert request is not None
        matched = request.match.tokens.get(decode, 0.0)
        seconds = prefill_seconds(self._loads[decode], request.prompt_tokens, matched)
        return Share(uncached_tokens(request, decode), seconds)

    # what would be done, for people

    def would_be_alone(
        self, method: str, path: str, body: bytes, pool: Pool
    ) -> Why | Refusal | None:
        """Why no handover would carry a request; None where one would, or none is ever made."""
        prefills = self._prefills.get(pool.model)
        return self._why_alone(method, path, body, prefills) if prefills else None

    def foresee(
        self, request: RouteRequest, pool: Pool, chosen: str, alone: Why | Refusal | None
    ) -> Foreseen | None:
        """How the backend that a policy has chosen would be used; None where no prefill engine is.

        Args:
            alone: why no handover carries the request.
        """
        prefills, joint = self._prefills.get(pool.model), self._joint()
        if prefills is None:
            return None
        role = self._fleet.get(chosen).role
        if joint is not None:
            placement = joint.pair(request, self._loads[chosen])
            if placement.is_remote:
                why = self._why_remote(placement.decode)
                return Foreseen(placement.prefill, placement.decode, why)
            return Foreseen(chosen, chosen, alone or self._why_local(chosen, pool))
        if role is not Role.DECODE or alone is not None:
            return Foreseen(chosen, chosen, alone or Why.SOONER)
        target = self._fleet.get(chosen)
        roomy = [
            load
            for load in prefills
            if self._has_room(load)
            and self._pairs.connector(self._fleet.get(load.id), target) is not None
        ]
        if self.serves_alone(chosen):
            weighed = self._decide(request, self._loads[chosen], roomy)
        else:
            weighed = Placement(soonest(request, roomy) if roomy else None, Why.NEEDED)
        prefill = chosen if weighed.prefill is None else weighed.prefill.id
        return Foreseen(prefill, chosen, weighed.why)

    # where the decode engine was chosen first, and when a prefill leg has failed

    def place(
        self, context: RequestContext, pool: Pool, decode: str, prefills: Sequence[BackendLoad]
    ) -> Remote | None:
        """Where a request is prefilled; None for its decode engine. Its record says why.

        Args:
            pool: the engines that answer for its model.
            decode: id of the decode engine.
            prefills: the prefill engines that can take requests now.

        Raises:
            Stranded: its decode engine cannot, and nobody else either.
        """
        placement, remote = self._place(context, pool, decode, prefills)
        context.record.placement = "local" if remote is None else "remote"
        why = placement.why
        if why == Why.SOONER:
            why = self._why_local(decode, pool)
        context.record.placement_reason = why
        return remote

    def _place(
        self, context: RequestContext, pool: Pool, decode: str, prefills: Sequence[BackendLoad]
    ) -> tuple[Placement, Remote | None]:
        request, tries = context.request, context.tries
        assert request is not None
        alone = self.serves_alone(decode)
        if alone and self._joint() is not None and (tries is None or not tries.made):
            return Placement(None, context.record.placement_reason), None
        if tries is not None and tries.fallback is not None:
            return self._alone(context, decode, tries.fallback), None
        scope = context.scope
        route = route_of(scope["method"], scope["path"])
        if route is None:
            return Placement(None, Why.ROUTE), None
        failed = () if tries is None else tries.failed
        target = self._fleet.get(decode)
        connectors = {
            load.id: connector
            for load in prefills
            if load.id not in failed
            and (connector := self._pairs.connector(self._fleet.get(load.id), target)) is not None
        }
        pairable = [load for load in prefills if load.id in connectors]
        roomy = [load for load in pairable if self._has_room(load)]
        if not roomy and not alone and not self._has_whole(pool):
            # It waits at the engine: no more of them do than decode engines have room for.
            roomy = [load for load in pairable if _is_trusted(load)]
        if alone and tries is not None and tries.failed:
            # Another engine was found to be worth it.
            placement = Placement(None, Why.NO_PREFILL)
            if roomy:
                placement = Placement(soonest(request, roomy), Why.WORTH)
        elif alone:
            placement = self._decide(request, self._loads[decode], roomy)
        elif roomy:
            placement = Placement(soonest(request, roomy), Why.NEEDED)
        else:
            placement = Placement(None, Why.NO_PREFILL)
        if placement.why == Why.NO_PREFILL:
            why = Fallback.NO_PREFILL
            if tries is not None and tries.last is not None:
                why = tries.last
            elif prefills:
                why = Fallback.FULL if pairable else Fallback.UNPAIRED
            return self._alone(context, decode, why), None
        if placement.prefill is None:
            return placement, None
        connector = connectors[placement.prefill.id]
        refused = connector.refuses(context.body, route)
        if refused is not None:
            if not alone:
                raise Stranded(refusal=refused)
            return Placement(None, refused), None
        return placement, Remote(placement.prefill, connector, route)

    def _alone(self, context: RequestContext, decode: str, why: Fallback) -> Placement:
        if not self.serves_alone(decode):
            raise Stranded(None if context.tries is None else context.tries.cause)
        self.serve_alone(context, why)
        return Placement(None, why)

    def _has_room(self, load: BackendLoad) -> bool:
        return _is_trusted(load) and load.prefill.has_slot(self._max_requests())

    def _has_whole(self, pool: Pool) -> bool:
        """Whether anybody serves requests of a pool without a handover."""
        return any(self.serves_alone(load.id) for load in (*pool.backends, *pool.avoided))

    def serves_alone(self, id: str) -> bool:
        return self._pairs.serves_alone(self._fleet.get(id))

    def serve_alone(self, context: RequestContext, why: Fallback) -> None:
        """From here on the request, which was to be handed over, is not."""
        if context.tries is None:
            context.tries = Tries()
        context.tries.fallback = why
        self._leave_alone(context)
        if not context.record.fallback:
            context.record.fallback = why
            self._metrics.fallback(why)

    @staticmethod
    def _leave_alone(context: RequestContext) -> None:
        assert context.request is not None
        context.request = structs.replace(context.request, alone=True)


def _is_trusted(load: BackendLoad) -> bool:
    """Not on trial, or with a permit that is free."""
    return load.trials is None or load.trials.free
