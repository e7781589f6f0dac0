"""Where a request is prefilled, given the engine that is to decode it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf

from msgspec import structs

from gateway.disagg.fleet_engines import FleetEngines
from gateway.disagg.prefill_choice import ChoosePrefill, PrefillChoice, RemotePrefill, soonest
from gateway.disagg.reasons import Fallback, Why
from gateway.disagg.refusal import Refusal
from gateway.disagg.route import route_of
from gateway.http.context import RequestContext, Tries
from gateway.scheduling.cached import anchor, uncached_tokens
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.telemetry.metrics import Metrics
from policies.base import RouteRequest
from policies.cost import own_prefill_seconds


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


class DecodeShare:
    """What a request brings to prefill where it is decoded: all of it, or nothing."""

    def __init__(self, request: RouteRequest, decode: BackendLoad) -> None:
        self._tokens = uncached_tokens(request, decode.id)
        self._seconds = own_prefill_seconds(request, decode)

    def here(self, lease: Lease) -> None:
        if lease.uncached_tokens != self._tokens:
            lease.reprice(self._tokens, self._seconds)

    def elsewhere(self, lease: Lease) -> None:
        lease.reprice(0, 0.0)
        lease.prefill_due = inf  # as long as the other engine is at it


class PrefillRouter:
    """Args:
    loads: the ledgers, by backend id.
    choose: compares the two ways for a request whose decode engine is chosen.
    jointly: whether the policy has chosen both engines together, as of now.
    max_requests: prefill legs that one engine may have at a time, as of now.
    """

    def __init__(
        self,
        *,
        engines: FleetEngines,
        loads: Mapping[str, BackendLoad],
        choose: ChoosePrefill,
        jointly: Callable[[], bool],
        metrics: Metrics,
        max_requests: Callable[[], int],
    ) -> None:
        self._engines = engines
        self._loads = loads
        self._choose = choose
        self._jointly = jointly
        self._metrics = metrics
        self._max_requests = max_requests

    def share(self, context: RequestContext, decode: str) -> DecodeShare:
        assert context.request is not None
        return DecodeShare(context.request, self._loads[decode])

    def place(
        self, context: RequestContext, pool: Pool, decode: str, prefills: Sequence[BackendLoad]
    ) -> RemotePrefill | None:
        """Where a request is prefilled; None for its decode engine. Its record says why.

        Args:
            pool: the engines that answer for its model.
            decode: id of the decode engine.
            prefills: the prefill engines that can take requests now.

        Raises:
            Stranded: its decode engine cannot, and nobody else either.
        """
        why, remote = self._place(context, pool, decode, prefills)
        if why == Why.SOONER:
            why = self._engines.why_local(decode, prefills)
        context.record.placement = "local" if remote is None else "remote"
        context.record.placement_reason = why
        return remote

    def foresee(
        self, request: RouteRequest, decode: str, prefills: Sequence[BackendLoad]
    ) -> PrefillChoice:
        """What would be chosen for a request that has not been sent to anybody."""
        roomy = [
            load
            for load in prefills
            if self._engines.paired(load.id, decode, request.model) and self._has_room(load)
        ]
        return self._chosen(request, decode, roomy)

    def serve_alone(self, context: RequestContext, why: Fallback) -> None:
        """From here on the request, which was to be handed over, is not."""
        if context.tries is None:
            context.tries = Tries()
        context.tries.fallback = why
        leave_alone(context)
        self._note_fallback(context, why)

    def serve_whole(
        self, context: RequestContext, id: str, prefills: Collection[BackendLoad]
    ) -> None:
        """An engine to which nothing is handed over serves a request, which may have been meant to
        be handed over.

        Args:
            id: the engine's.
            prefills: the prefill engines that can take requests now.
        """
        record, tries = context.record, context.tries
        record.prefill_backend = ""
        if tries is not None:
            fallback = tries.fallback or tries.last or Fallback.DECODE
            self._note_fallback(context, fallback)
            record.placement, record.placement_reason = "local", fallback
        elif not record.placement:
            why = self._engines.why_local(id, prefills)
            record.placement, record.placement_reason = "local", why

    def stand_in(
        self,
        context: RequestContext,
        pool: Pool,
        prefills: Sequence[BackendLoad],
        tried: Collection[str],
    ) -> Lease | None:
        """A lease at a prefill engine that serves all of a request; None when none can. What is
        charged for the request goes over from the lease that it has.

        Args:
            prefills: the prefill engines that can take requests now.
        """
        request, lease, record = context.request, context.lease, context.record
        assert request is not None
        assert lease is not None
        able = [
            load
            for load in prefills
            if load.id not in tried
            and self._engines.serves_alone(load.id)
            and pool.takes_answer(load, request)
        ]
        if not able:
            return None
        load = soonest(request, able)
        standing_in = lease.hand_over(load, anchor(request, load.id))
        DecodeShare(request, load).here(standing_in)
        record.backend = load.id
        record.matched_tokens = request.match.tokens.get(load.id, 0.0)
        record.uncached_tokens = standing_in.uncached_tokens
        record.placement = ""
        return standing_in

    # how it is done

    def _place(
        self, context: RequestContext, pool: Pool, decode: str, prefills: Sequence[BackendLoad]
    ) -> tuple[str, RemotePrefill | None]:
        """Returns: why, and where."""
        request, tries, engines = context.request, context.tries, self._engines
        assert request is not None
        alone = engines.serves_alone(decode)
        if alone and self._jointly() and (tries is None or not tries.made):
            return context.record.placement_reason, None
        if tries is not None and tries.fallback is not None:
            return self._fall_back(context, decode, tries.fallback), None
        route = route_of(context.scope["method"], context.scope["path"])
        if route is None:
            return Why.ROUTE, None
        failed = () if tries is None else tries.failed
        connectors = {
            load.id: connector
            for load in prefills
            if load.id not in failed
            and (connector := engines.connector(load.id, decode, request.model)) is not None
        }
        pairable = [load for load in prefills if load.id in connectors]
        roomy = [load for load in pairable if self._has_room(load)]
        if not roomy and not alone and not engines.any_serves_alone(pool):
            # It waits at the engine: no more of them do than decode engines have room for.
            roomy = [load for load in pairable if load.has_permit]
        if alone and roomy and failed:
            # Another engine was found to be worth it.
            choice = PrefillChoice(soonest(request, roomy), Why.WORTH)
        elif alone and failed:
            choice = PrefillChoice(None, Why.NO_PREFILL)
        else:
            choice = self._chosen(request, decode, roomy)
        if choice.why == Why.NO_PREFILL:
            why = Fallback.NO_PREFILL
            if tries is not None and tries.last is not None:
                why = tries.last
            elif prefills:
                why = Fallback.FULL if pairable else Fallback.UNPAIRED
            return self._fall_back(context, decode, why), None
        if choice.engine is None:
            return choice.why, None
        connector = connectors[choice.engine.id]
        refused = connector.refuses(context.body, route)
        if refused is None:
            return choice.why, RemotePrefill(choice.engine, connector, route)
        if not alone:
            raise Stranded(refusal=refused)
        return refused, None

    def _chosen(
        self, request: RouteRequest, decode: str, roomy: Sequence[BackendLoad]
    ) -> PrefillChoice:
        if self._engines.serves_alone(decode):
            return self._choose(request, self._loads[decode], roomy)
        if roomy:
            return PrefillChoice(soonest(request, roomy), Why.NEEDED)
        return PrefillChoice(None, Why.NO_PREFILL)

    def _fall_back(self, context: RequestContext, decode: str, why: Fallback) -> Fallback:
        if not self._engines.serves_alone(decode):
            if context.tries is None:
                context.tries = Tries()
            context.tries.last = why
            raise Stranded(context.tries.cause)
        self.serve_alone(context, why)
        return why

    def _note_fallback(self, context: RequestContext, why: Fallback) -> None:
        if not context.record.fallback:
            context.record.fallback = why
            self._metrics.fallback(why)

    def _has_room(self, load: BackendLoad) -> bool:
        return load.has_permit and load.prefill.has_slot(self._max_requests())


def leave_alone(context: RequestContext) -> None:
    """Have the policy know that one engine has to serve all of a request."""
    assert context.request is not None
    context.request = structs.replace(context.request, alone=True)
