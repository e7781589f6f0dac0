"""Having requests prefilled by one engine and decoded by another, where that pays and works.

The decode engine's lease comes first. The prefill leg goes to a prefill engine that can be paired
with it; a second one is tried when that fails, and then the decode engine serves the request by
itself, from the bytes that the client sent. No pairing is used twice.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any

from gateway.config import Timeouts
from gateway.disagg.connector import NoTransfer
from gateway.disagg.fleet_engines import FleetEngines
from gateway.disagg.handover import HandoverFailed, Stale
from gateway.disagg.pairs import Pairs
from gateway.disagg.prefill_leg import AnswerTooLarge, LegRefused
from gateway.disagg.reasons import Fallback
from gateway.fleet.time_limits import TimeLimitTable
from gateway.fleet.upstream import OutOfDescriptors, UpstreamFailure
from gateway.http.context import RequestContext, Tries
from gateway.http.dispatch import Dispatcher
from gateway.http.errors import Malformed, Overloaded, UpstreamBroke
from gateway.http.failures import DROPPED, Blame, Failure
from gateway.http.fallback import fallback_for
from gateway.http.prefill_legs import PrefillLegs
from gateway.http.prefill_router import DecodeShare, PrefillRouter, Stranded
from gateway.http.verdicts import Verdicts
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.types import Clock, Role, WorkClass

MOST = 3
"""Handovers that are begun for one request, with whatever engines."""
MOST_FAILED = 2
"""Prefill engines that may fail one request before it is served without."""

_ITS_OWN = frozenset({400, 413, 415, 422})
"""What a prefill engine says of the request itself: the decode engine would say no other."""
_JSON = [(b"content-type", b"application/json")]


class Handovers:
    """Args:
    prefills: the prefill engines that can take requests now, by model; a model that no prefill
        engine serves is missing.
    """

    def __init__(
        self,
        *,
        engines: FleetEngines,
        prefills: Mapping[str, Sequence[BackendLoad]],
        pairs: Pairs,
        router: PrefillRouter,
        legs: PrefillLegs,
        dispatcher: Dispatcher,
        verdicts: Verdicts,
        clock: Clock,
        timeouts: Timeouts,
    ) -> None:
        self._engines = engines
        self._prefills = prefills
        self._pairs = pairs
        self._router = router
        self._legs = legs
        self._dispatcher = dispatcher
        self._verdicts = verdicts
        self._clock = clock
        self.reconfigure(timeouts)

    def reconfigure(self, timeouts: Timeouts) -> None:
        """Go by other limits from the next request on."""
        self._limits = TimeLimitTable(timeouts)

    def send(
        self, context: RequestContext, pool: Pool, lease: Lease, *, may_retry: bool
    ) -> Coroutine[Any, Any, UpstreamFailure | None]:
        """Run one exchange with the backend that the lease is at, prefilled there or elsewhere.

        As `Dispatcher.send`, and:

        Raises:
            Stranded: it cannot be served there.
        """
        prefills = self._prefills.get(pool.model)
        if prefills is None and context.tries is None:
            return self._dispatcher.send(context, lease, may_retry=may_retry)
        id = lease.backend_id
        if prefills is None or self._engines.role(id) is not Role.DECODE:
            self._router.serve_whole(context, id, prefills or ())
            return self._dispatcher.send(context, lease, may_retry=may_retry)
        return self._hand_over(context, pool, lease, prefills, may_retry=may_retry)

    async def _hand_over(
        self,
        context: RequestContext,
        pool: Pool,
        lease: Lease,
        prefills: Sequence[BackendLoad],
        *,
        may_retry: bool,
    ) -> UpstreamFailure | None:
        """As `send`, at a decode engine of a fleet with prefill engines."""
        share = self._router.share(context, lease.backend_id)
        while True:
            try:
                await self._prefill(context, pool, lease, prefills, share)
                handover = context.handover
                if handover is not None and handover.decode_leg.final:
                    handover.take()
                    self._dispatcher.pass_on(context, 200, _JSON, handover.decode_leg.body)
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

    def stand_in(self, context: RequestContext, pool: Pool, tried: Collection[str]) -> Lease | None:
        """A lease at a prefill engine that serves all of a request; None when none can."""
        prefills = self._prefills.get(pool.model, ())
        return self._router.stand_in(context, pool, prefills, tried)

    def serve_nothing_alone(self, pool: Pool) -> list[str]:
        """The backends of a pool that serve nothing without a handover."""
        return [load.id for load in pool.members if not self._engines.serves_alone(load.id)]

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
        elif stranded.refusal is not None:
            raise Malformed(
                "The engines here prefill and decode apart, which such a request cannot be:"
                f" {stranded.refusal}.",
                code="not_carried",
            )
        else:
            why = "No prefill engine is available."
            if cause is not None:
                why = "The prompt could not be handed over."
            raise Overloaded(why, status=503, code="no_prefill", retry_after=1)

    # before the decode leg

    async def _prefill(
        self,
        context: RequestContext,
        pool: Pool,
        lease: Lease,
        prefills: Sequence[BackendLoad],
        share: DecodeShare,
    ) -> None:
        """Have the request prefilled elsewhere, if that is to be: it then has its handover.

        Raises:
            HandoverFailed: the prefill leg has failed.
            Stranded, ClientGone
        """
        self._drop(context)
        record, request = context.record, context.request
        assert request is not None
        remote = context.remote
        if remote is None:
            remote = self._router.place(context, pool, lease.backend_id, prefills)
        if remote is None:
            share.here(lease)
            record.prefill_backend = ""
            record.matched_tokens = request.match.tokens.get(lease.backend_id, 0.0)
            record.uncached_tokens = lease.uncached_tokens
            context.limits = self._limits.of(pool.model, request.work_class)
            return
        load, connector = remote.load, remote.connector
        context.remote = None  # what it holds is the handover's from here on
        share.elsewhere(lease)
        if context.tries is None:
            context.tries = Tries()
        context.tries.made += 1
        record.prefill_backend = load.id
        record.matched_tokens = request.match.tokens.get(load.id, 0.0)
        limits = self._limits.of(pool.model, WorkClass.PREFILL)
        try:
            handover = self._legs.begin(context, lease, remote, limits)
            record.uncached_tokens = handover.lease.uncached_tokens
            if connector.concurrent:
                lease.prefill_due = handover.lease.prefill_due
                # It begins when the other one is done, whose limit is to strike first.
                own = self._limits.of(pool.model, WorkClass.DECODE).first_byte
                context.limits = limits._replace(first_byte=limits.first_byte + own)
            else:
                await self._legs.answer(context, handover)
                lease.prefill_due = self._clock()
                context.limits = self._limits.of(pool.model, WorkClass.DECODE)
            handover.make_decode_leg()
        except (UpstreamFailure, LegRefused, Stale, OutOfDescriptors, NoTransfer) as failure:
            raise HandoverFailed(failure) from None
        if handover.decode_leg.final and record.stream:
            # One token and its end: not worth making a stream of.
            raise HandoverFailed(NoTransfer("the prefill leg's answer is all of it"))

    # when something fails

    def _failed(self, context: RequestContext, cause: BaseException | None) -> LegRefused | None:
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
        why = fallback_for(cause)
        unclear = handover.connector.waits and why is Fallback.SLOW
        self._verdicts.leg_failed(context, handover.lease, cause, to_blame=not unclear)
        if unclear:
            # Both may be well and not reach each other, which no probe of theirs shows.
            self._pairs.failed(handover.prefill_id, handover.decode_id)
        if isinstance(cause, NoTransfer):
            handover.no_transfer = cause
        handover.end()
        context.handover = None
        if isinstance(cause, LegRefused) and cause.status in _ITS_OWN:
            return cause
        if isinstance(cause, Stale):
            tries.stale = True
        elif cause is not None:
            tries.failed += (handover.prefill_id,)
            tries.cause = cause
        tries.last = why
        again = why is not Fallback.SLOW and not isinstance(cause, AnswerTooLarge)
        if again and tries.made < MOST and len(tries.failed) < MOST_FAILED:
            return None
        if not self._engines.serves_alone(handover.decode_id):
            raise Stranded(cause)
        self._router.serve_alone(context, why)
        return None

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
            self._pairs.worked(handover.prefill_id, handover.decode_id)
            return False
        assert relay is not None
        if handover.failure is not None:
            self._verdicts.leg_failed(context, handover.lease, handover.failure)
        if not self._engines.serves_alone(handover.decode_id):
            return False
        if broken is not None:
            if not last or not relay.unbegun or broken.kind not in DROPPED:
                return False
        elif not relay.refused or not _is_error(relay.refusal):
            return False
        else:
            self._pairs.failed(handover.prefill_id, handover.decode_id)
            context.suspects = tuple(
                suspect for suspect in context.suspects if suspect.backend != handover.decode_id
            )
        self._router.serve_alone(context, Fallback.DECODE)
        return True

    def _drop(self, context: RequestContext) -> None:
        if context.handover is not None:
            context.handover.end()
            context.handover = None

    def _note_opened(self, context: RequestContext) -> None:
        """Comments may have gone out while the exchange lasted."""
        if context.relay is not None:
            context.opened = context.relay.opened


def _is_error(row: Failure | None) -> bool:
    return row is not None and row.blame is Blame.BACKEND_IF_SERVED
