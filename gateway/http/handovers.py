"""Having requests prefilled by one engine and decoded by another, where that pays and works.

The decode engine's lease comes first. The prefill leg goes to a prefill engine that can be paired
with it; a second one is tried when that fails, and then the decode engine serves the request by
itself, from the bytes that the client sent. No pairing is used twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import inf

from gateway.config import Timeouts
from gateway.disagg.connector import Connector, NoTransfer
from gateway.disagg.handover import Handover, HandoverFailed
from gateway.disagg.pairs import Pairs
from gateway.disagg.placement import Decide, Fallback, Placement, Why, soonest
from gateway.disagg.prefill_leg import LegRefused
from gateway.disagg.release import Releases
from gateway.disagg.route import route_of
from gateway.fleet.fleet import Fleet
from gateway.fleet.time_limits import TimeLimits, TimeLimitTable
from gateway.fleet.upstream import FailureKind, OutOfDescriptors, Upstream, UpstreamFailure
from gateway.http.client import ClientGone
from gateway.http.context import RequestContext, Tries
from gateway.http.dispatch import Dispatcher
from gateway.http.engine_priority import with_priority
from gateway.http.errors import Overloaded, UpstreamBroke
from gateway.http.failures import BUSY, Blame, Failure, refusal
from gateway.http.learning import Learning
from gateway.http.naming import addressed
from gateway.http.request_head import leg_head
from gateway.http.verdicts import Verdicts
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.cached import anchor, uncached_tokens
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.telemetry.metrics import Metrics
from gateway.types import Clock, Decision, Reason, Role, WorkClass
from policies.cost import prefill_seconds

MOST = 3
"""Handovers that are begun for one request, with whatever engines."""
MOST_FAILED = 2
"""Prefill engines that may fail one request before it is served without."""

_ITS_OWN = frozenset({400, 413, 415, 422})
"""What a prefill engine says of the request itself: the decode engine would say no other."""
_SLOW = frozenset(
    {FailureKind.FIRST_BYTE_TIMEOUT, FailureKind.IDLE_TIMEOUT, FailureKind.TOTAL_TIMEOUT}
)

_DROPPED = frozenset({FailureKind.RESET, FailureKind.INCOMPLETE, FailureKind.PROTOCOL})
"""The decode engine, or the process that it was, let go of the request; it may well serve another.
"""
_JSON = [(b"content-type", b"application/json")]


class Stranded(Exception):
    """The decode engine cannot serve the request without a handover, and there is none.

    Attributes:
        cause: how the last prefill leg failed, where there was one.
    """

    def __init__(self, cause: BaseException | None = None) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Handovers:
    """Args:
    prefills: the prefill engines that can take requests now, by model; a model that no prefill
        engine serves is missing.
    loads: the ledgers, by backend id.
    max_requests: prefill legs that one engine may have at a time, as of now.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        upstreams: Mapping[str, Upstream],
        loads: Mapping[str, BackendLoad],
        prefills: Mapping[str, Sequence[BackendLoad]],
        pairs: Pairs,
        decide: Decide,
        dispatcher: Dispatcher,
        index: PrefixIndex,
        learning: Learning,
        verdicts: Verdicts,
        metrics: Metrics,
        clock: Clock,
        timeouts: Timeouts,
        max_requests: Callable[[], int],
    ) -> None:
        self._fleet = fleet
        self._upstreams = upstreams
        self._loads = loads
        self._prefills = prefills
        self.pairs = pairs
        self.decide = decide
        self._dispatcher = dispatcher
        self._index = index
        self._learning = learning
        self._verdicts = verdicts
        self._metrics = metrics
        self._clock = clock
        self._max_requests = max_requests
        self._releases = Releases(clock, metrics.released)
        self.reconfigure(timeouts)

    def reconfigure(self, timeouts: Timeouts) -> None:
        """Go by other limits from the next request on."""
        self._limits = TimeLimitTable(timeouts)

    async def send(
        self, context: RequestContext, pool: Pool, lease: Lease, *, may_retry: bool
    ) -> UpstreamFailure | None:
        """Run one exchange with the backend that the lease is at, prefilled there or elsewhere.

        As `Dispatcher.send`, and:

        Raises:
            Stranded: it cannot be served there.
        """
        prefills = self._prefills.get(pool.model)
        if prefills is None or self._fleet.get(lease.backend_id).role is not Role.DECODE:
            return await self._dispatcher.send(context, lease, may_retry=may_retry)
        share = _Share(lease)
        while True:
            try:
                await self._prefill(context, pool, lease, prefills, share)
                handover = context.handover
                if handover is not None and handover.leg.final:
                    handover.take()
                    self._dispatcher.pass_on(context, 200, _JSON, handover.leg.body)
                    return None
                broken = await self._dispatcher.send(context, lease, may_retry=may_retry)
            except HandoverFailed as failed:
                self._note_opened(context)
                answer = self._failed(context, failed.cause)
                if answer is not None:
                    self._dispatcher.pass_on(context, answer.status, answer.headers, answer.body)
                    return None
            else:
                if not self._starts_over(context, broken, last=not may_retry):
                    return broken
                self._note_opened(context)

    def serve_nothing_alone(self, pool: Pool) -> list[str]:
        """The backends of a pool that serve nothing without a handover."""
        loads = (*pool.backends, *pool.avoided)
        return [load.id for load in loads if not self._serves_alone(load.id)]

    def give_up(self, context: RequestContext, stranded: Stranded) -> None:
        """Answer a request that nobody can serve.

        Raises:
            RequestError: there is no answer of an engine to pass on.
        """
        cause = stranded.cause
        if isinstance(cause, LegRefused):
            self._dispatcher.pass_on(context, cause.status, cause.headers, cause.body)
        elif isinstance(cause, UpstreamFailure):
            raise UpstreamBroke(cause)
        else:
            raise Overloaded(
                "No prefill engine is available.", status=503, code="no_prefill", retry_after=1
            )

    # before the decode leg

    async def _prefill(
        self,
        context: RequestContext,
        pool: Pool,
        lease: Lease,
        prefills: Sequence[BackendLoad],
        share: _Share,
    ) -> None:
        """Have the request prefilled elsewhere, if that is to be: it then has its handover.

        Raises:
            HandoverFailed: the prefill leg has failed.
            Stranded, ClientGone
        """
        self._drop(context)
        record, request = context.record, context.request
        assert request is not None
        placement, connector = self._place(context, lease, prefills)
        load = placement.prefill
        record.placement_reason = placement.why
        if load is None or connector is None:
            share.here(lease)
            record.placement = "local"
            record.prefill_backend = ""
            record.matched_tokens = request.match.tokens.get(lease.backend_id, 0.0)
            record.uncached_tokens = lease.uncached_tokens
            context.limits = self._limits.of(pool.model, request.work_class)
            return
        share.elsewhere(lease)
        record.placement = "remote"
        record.prefill_backend = load.id
        record.matched_tokens = request.match.tokens.get(load.id, 0.0)
        limits = self._limits.of(pool.model, WorkClass.PREFILL)
        try:
            handover = self._begin(context, lease, load, connector, limits)
            record.uncached_tokens = handover.lease.uncached_tokens
            if connector.concurrent:
                lease.prefill_due = handover.lease.prefill_due
                # It begins when the other one is done, whose limit is to strike first.
                own = self._limits.of(pool.model, WorkClass.DECODE).first_byte
                context.limits = limits._replace(first_byte=limits.first_byte + own)
            else:
                await self._answered(context, handover)
                lease.prefill_due = self._clock()
                context.limits = self._limits.of(pool.model, WorkClass.DECODE)
            handover.make_leg()
        except (UpstreamFailure, LegRefused, OutOfDescriptors, NoTransfer) as failure:
            raise HandoverFailed(failure) from None
        if handover.leg.final and record.stream:
            # One token and its end: not worth making a stream of.
            raise HandoverFailed(NoTransfer("the prefill leg's answer is all of it"))

    def _place(
        self, context: RequestContext, lease: Lease, prefills: Sequence[BackendLoad]
    ) -> tuple[Placement, Connector | None]:
        request, tries = context.request, context.tries
        assert request is not None
        decode = lease.backend_id
        alone = self._serves_alone(decode)
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
            and (connector := self.pairs.connector(self._fleet.get(load.id), target)) is not None
        }
        pairable = [load for load in prefills if load.id in connectors]
        roomy = [load for load in pairable if self._has_room(load)]
        if alone:
            placement = self.decide(request, self._loads[decode], roomy)
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
                raise Stranded
            return Placement(None, refused), None
        return placement, connector

    def _alone(self, context: RequestContext, decode: str, why: Fallback) -> Placement:
        if not self._serves_alone(decode):
            raise Stranded(None if context.tries is None else context.tries.cause)
        self._serve_alone(context, why)
        return Placement(None, why)

    def _serves_alone(self, id: str) -> bool:
        return self.pairs.serves_alone(self._fleet.get(id))

    def _has_room(self, load: BackendLoad) -> bool:
        return (load.trials is None or load.trials.free) and load.prefill.has_slot(
            self._max_requests()
        )

    def _begin(
        self,
        context: RequestContext,
        decode: Lease,
        load: BackendLoad,
        connector: Connector,
        limits: TimeLimits,
    ) -> Handover:
        """Send the prefill leg."""
        if context.tries is None:
            context.tries = Tries()
        context.tries.made += 1
        request = context.request
        assert request is not None
        engine = self._fleet.get(load.id)
        upstream = self._upstreams[load.id]
        route = route_of(context.scope["method"], context.scope["path"])
        assert route is not None
        at_engine = addressed(context, engine, self._fleet.aliases)
        target = self._fleet.get(decode.backend_id)
        body = addressed(context, target, self._fleet.aliases).body
        matched = request.match.tokens.get(load.id, 0.0)
        lease = Lease(
            load,
            Decision(load.id, Reason.LOAD),
            WorkClass.PREFILL,
            request.prompt_tokens,
            uncached_tokens(request, load.id),
            prefill_seconds(load, request.prompt_tokens, matched),
            self._clock,
            anchor=anchor(request, load.id),
        )
        booking = self._index.book(load.id, at_engine.chain) if at_engine.chain else None
        if not connector.concurrent:
            self._learning.dispatched(lease, streamed=True)

        def over(handover: Handover, served: bool) -> None:
            if served:
                if booking is not None:
                    self._index.confirm(booking)
                self._verdicts.accepted(context, lease)
                self._fleet.report_success(load.id)
                lease.output_tokens = 1
                self._learning.prefilled(context, handover, booking)
            else:
                if booking is not None:
                    self._index.withdraw(booking)
                self._learning.dropped(lease)
            lease.release()

        handover = context.handover = Handover(
            connector,
            self.pairs.pair(route, engine, target),
            with_priority(context, body, target),
            decode.backend_id,
            lease,
            self._clock,
            on_over=over,
            on_left=lambda left, held: self._release(context, left, held=held),
        )
        leg = connector.prefill(with_priority(context, at_engine.body, engine), handover.pairing)
        limits, ends_at = handover.limits(limits, context.ends_at)
        head = leg_head(context, engine, upstream.access, handover, leg)
        handover.send(upstream, head, leg.body, limits, ends_at)
        return handover

    async def _answered(self, context: RequestContext, handover: Handover) -> None:
        """Wait for the prefill leg's answer.

        Raises:
            ClientGone: the client left. The engine then sees that nobody is listening.
            UpstreamFailure, LegRefused, OutOfDescriptors
        """
        context.phase = "prefill"
        task = handover.task
        assert task is not None
        client = context.client
        client.on_gone = handover.end
        if client.gone:
            handover.end()
        await asyncio.wait((task,))
        if client.gone:
            raise ClientGone
        task.result()
        assert handover.prefilled_at is not None
        context.record.prefill_leg_seconds = handover.prefilled_at - handover.lease.granted_at

    # when something fails

    def _failed(
        self, context: RequestContext, cause: BaseException | None
    ) -> LegRefused | None:
        """A prefill leg has come to nothing: blame whom it shows at fault, and see what follows.

        Args:
            cause: None when its answer came, and is too old by now.

        Returns:
            What the client is to have for an answer; None when it can still be served.

        Raises:
            Stranded: it can be served neither with another handover nor without.
        """
        handover, tries = context.handover, context.tries
        assert handover is not None
        assert tries is not None
        unclear = handover.connector.waits and _fallback_for(cause) is Fallback.SLOW
        self._verdicts.leg_failed(context, handover.lease, cause, to_blame=not unclear)
        handover.end(useless=isinstance(cause, NoTransfer))
        context.handover = None
        if isinstance(cause, LegRefused) and cause.status in _ITS_OWN:
            return cause
        if cause is not None:
            tries.failed += (handover.prefill_id,)
            tries.cause = cause
        why = _fallback_for(cause)
        if why is not Fallback.SLOW and tries.made < MOST and len(tries.failed) < MOST_FAILED:
            tries.last = why
            return None
        if not self._serves_alone(handover.decode_id):
            raise Stranded(cause)
        self._serve_alone(context, why)
        return None

    def _serve_alone(self, context: RequestContext, why: Fallback) -> None:
        """From here on the request, which was to be handed over, is not."""
        if context.tries is None:
            context.tries = Tries()
        context.tries.fallback = why
        if not context.record.fallback:
            context.record.fallback = why
            self._metrics.fallback(why)

    def _starts_over(
        self, context: RequestContext, broken: UpstreamFailure | None, *, last: bool
    ) -> bool:
        """Whether the decode engine failed on what was handed over, and is to serve the request by
        itself now. Where it refused, it is not to blame for that as long as it does: either engine
        may be at fault, or what lies between them.

        Args:
            last: no other decode engine could take it.
        """
        handover, relay = context.handover, context.relay
        if handover is None or context.client.gone:
            return False
        if handover.taken:
            self.pairs.worked(handover.prefill_id, handover.decode_id)
            return False
        assert relay is not None
        if handover.failure is not None:
            self._verdicts.leg_failed(context, handover.lease, handover.failure)
        if not self._serves_alone(handover.decode_id):
            return False
        if broken is not None:
            if not last or not relay.unbegun or broken.kind not in _DROPPED:
                return False
        elif not relay.refused or not _is_error(relay.refusal):
            return False
        else:
            self.pairs.failed(handover.prefill_id, handover.decode_id)
            context.suspects = tuple(
                suspect for suspect in context.suspects if suspect.backend != handover.decode_id
            )
        self._serve_alone(context, Fallback.DECODE)
        return True

    def _drop(self, context: RequestContext) -> None:
        if context.handover is not None:
            context.handover.end()
            context.handover = None

    def _note_opened(self, context: RequestContext) -> None:
        """Comments may have gone out while the exchange lasted."""
        if context.relay is not None:
            context.opened = context.relay.opened

    def _release(self, context: RequestContext, handover: Handover, *, held: bool) -> None:
        """Have the prefill engine let go of what it holds for a decode leg that will not come."""
        connector = handover.connector
        release = connector.release(handover.pairing, handover.answer)
        if release is None:
            if held and connector.holds:
                self._metrics.released(False)
            return
        id = handover.decode_id if release.to_decode else handover.prefill_id
        upstream = self._upstreams.get(id)
        if upstream is None:
            self._metrics.released(False)
            return
        head = leg_head(context, self._fleet.get(id), upstream.access, handover, release)
        self._releases.send(upstream, head, release)


class _Share:
    """What a decode engine's lease brings to prefill there: all of it, or nothing."""

    def __init__(self, lease: Lease) -> None:
        self._tokens = lease.uncached_tokens
        self._seconds = lease.prefill_seconds

    def here(self, lease: Lease) -> None:
        if lease.uncached_tokens != self._tokens:
            lease.reprice(self._tokens, self._seconds)

    def elsewhere(self, lease: Lease) -> None:
        lease.reprice(0, 0.0)
        lease.prefill_due = inf  # as long as the other engine is at it


def _fallback_for(cause: BaseException | None) -> Fallback:
    if cause is None:
        return Fallback.EXPIRED
    if isinstance(cause, NoTransfer):
        return Fallback.NO_TRANSFER
    if isinstance(cause, LegRefused):
        return Fallback.BUSY if refusal(cause.status) is BUSY else Fallback.REFUSED
    if isinstance(cause, UpstreamFailure) and cause.kind in _SLOW:
        return Fallback.SLOW
    return Fallback.BROKEN


def _is_error(row: Failure | None) -> bool:
    return row is not None and row.blame is Blame.BACKEND_IF_SERVED
