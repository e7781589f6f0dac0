"""Prefill legs: sent, waited for, and settled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from gateway.disagg.connector import Release
from gateway.disagg.handover import Handover
from gateway.disagg.holding import Holding, Orphaned
from gateway.disagg.pairs import Pairs
from gateway.disagg.prefill_choice import RemotePrefill
from gateway.disagg.release import Releases
from gateway.disagg.span import Waste
from gateway.disagg.traffic import Traffic
from gateway.disagg.transfer import Transfer
from gateway.fleet.fleet import Fleet
from gateway.fleet.time_limits import TimeLimits
from gateway.fleet.upstream import Upstream
from gateway.http.client import ClientGone
from gateway.http.context import RequestContext
from gateway.http.engine_priority import with_priority
from gateway.http.learning import Learning
from gateway.http.naming import addressed
from gateway.http.outcome import handover_usage
from gateway.http.request_head import leg_head
from gateway.http.verdicts import Verdicts
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.cached import anchor, uncached_tokens
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.telemetry.metrics import Metrics
from gateway.types import Clock, Decision, Reason, WorkClass
from policies.cost import own_prefill_seconds

logger = logging.getLogger("prefixgate.disagg")

LAST = 2.0
"""Seconds that a gateway which stops gives to what is unsettled."""
_TICK = 0.01


class PrefillLegs:
    def __init__(
        self,
        *,
        fleet: Fleet,
        upstreams: Mapping[str, Upstream],
        pairs: Pairs,
        index: PrefixIndex,
        learning: Learning,
        verdicts: Verdicts,
        metrics: Metrics,
        traffic: Traffic,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._upstreams = upstreams
        self._pairs = pairs
        self._index = index
        self._learning = learning
        self._verdicts = verdicts
        self._metrics = metrics
        self._traffic = traffic
        self._clock = clock
        self._open: set[Handover] = set()
        self._releases = Releases(clock, self._told)

    @property
    def unsettled(self) -> int:
        """Handovers of which it is not known yet what they leave at their prefill engine, and
        engines that are being told."""
        return len(self._open) + len(self._releases.under_way)

    async def settle(self) -> None:
        """Wait until nothing is unsettled, for `LAST` seconds at most: no request is under way any
        more, and what is not told to an engine now is told by nobody."""
        loop = asyncio.get_running_loop()
        end = loop.time() + LAST
        while self.unsettled and loop.time() < end:  # noqa: ASYNC110  # once, and not for long
            await asyncio.sleep(_TICK)
        if self.unsettled:
            logger.warning("stopping: %d prompts may be left at prefill engines", self.unsettled)

    def begin(
        self,
        context: RequestContext,
        decode: Lease,
        remote: RemotePrefill,
        limits: TimeLimits,
    ) -> Handover:
        """Send the prefill leg, with a lease at its engine. The request then has its handover.

        Args:
            decode: the lease at the decode engine.
            limits: of any request that brings so much prefill.
        """
        load, connector, route, lease = remote
        engine = self._fleet.get(load.id)
        upstream = self._upstreams[load.id]
        at_engine = addressed(context, engine, self._fleet.aliases)
        target = self._fleet.get(decode.backend_id)
        body = addressed(context, target, self._fleet.aliases).body
        if lease is None:
            lease = self._lease(context, load)
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
                handover.transfer = self._transfer(context, handover)
            else:
                if booking is not None:
                    self._index.withdraw(booking)
                self._learning.dropped(lease)
            lease.release()

        handover = context.handover = Handover(
            connector,
            self._pairs.pair(route, engine, target),
            with_priority(context, body, target),
            decode.backend_id,
            lease,
            self._clock,
            fresh=context.tries is not None and context.tries.stale,
            on_over=over,
            on_closed=lambda closed, holding: self._settle(context, closed, holding),
        )
        self._open.add(handover)
        leg = connector.prefill(with_priority(context, at_engine.body, engine), handover.pairing)
        limits, ends_at = handover.limits(limits, context.ends_at)
        head = leg_head(context, engine, upstream.access, handover, leg)
        handover.send(upstream, head, leg.body, limits, ends_at)
        return handover

    def _lease(self, context: RequestContext, load: BackendLoad) -> Lease:
        request = context.request
        assert request is not None
        return Lease(
            load,
            Decision(load.id, Reason.LOAD),
            WorkClass.PREFILL,
            request.prompt_tokens,
            uncached_tokens(request, load.id),
            own_prefill_seconds(request, load),
            self._clock,
            anchor=anchor(request, load.id),
        )

    async def answer(self, context: RequestContext, handover: Handover) -> None:
        """Wait for the prefill leg's answer.

        Raises:
            ClientGone: the client left. The engine then sees that nobody is listening.
            UpstreamFailure, LegRefused, NoTransfer, Stale, OutOfDescriptors
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

    def _transfer(self, context: RequestContext, handover: Handover) -> Transfer:
        """The prefill leg is done, and what the decode engine lacks of the prompt on its way."""
        request, usage = context.request, handover_usage(context, handover)
        assert request is not None
        prompt = request.prompt_tokens
        lacking = max(0.0, prompt - request.match.tokens.get(handover.decode_id, 0.0))
        if usage is not None and usage.prompt_tokens and prompt:
            lacking *= usage.prompt_tokens / prompt  # ours is an estimate
        return self._traffic.transfer(
            handover.prefill_id,
            handover.decode_id,
            context.record.model,
            lacking,
            handover.prefilled_at,
        )

    def _settle(self, context: RequestContext, handover: Handover, holding: Holding) -> None:
        """A handover is over: have its prefill engine let go of what it may hold for nobody."""
        self._open.discard(handover)
        if holding is Holding.COMPUTED:
            why, seconds = self._why_left(context, handover), handover.lease.prefill_seconds
            self._traffic.wasted(handover.prefill_id, context.record.model, why, seconds)
        no_transfer = handover.no_transfer
        held_none = holding is Holding.NOTHING or not handover.connector.holds
        if held_none or (no_transfer is not None and not no_transfer.held):
            return
        release = handover.connector.release(handover.pairing, handover.answer)
        if release is not None:
            self._release(context, handover, release)
        elif holding is Holding.UNCLEAR or handover.sent:
            self._metrics.orphan(Orphaned.UNCLEAR)
        else:
            self._metrics.orphan(Orphaned.PROTOCOL)

    def _why_left(self, context: RequestContext, handover: Handover) -> Waste:
        if handover.no_transfer is not None:
            return Waste.NO_TRANSFER
        if context.client.gone:
            return Waste.CLIENT_LEFT
        if handover.sent:
            return Waste.DECODE
        return Waste.EXPIRED if self._clock() > handover.send_before else Waste.NOT_SENT

    def _release(self, context: RequestContext, handover: Handover, release: Release) -> None:
        id = handover.decode_id if release.to_decode else handover.prefill_id
        engine, upstream = self._fleet.find(id), self._upstreams.get(id)
        if engine is None or upstream is None:
            self._told(False)
            return
        head = leg_head(context, engine, upstream.access, handover, release)
        self._releases.send(upstream, head, release)

    def _told(self, done: bool) -> None:
        if done:
            self._metrics.releases += 1
        else:
            self._metrics.orphan(Orphaned.FAILED)
