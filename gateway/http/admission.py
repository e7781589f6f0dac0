"""Waiting for a lease, and giving back what came with it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from math import inf

from msgspec import structs

from gateway.http.client import ClientGone
from gateway.http.context import RequestContext
from gateway.http.errors import InternalFailure, Overloaded, RequestError
from gateway.http.facts import FactReader, Facts
from gateway.http.learning import Learning
from gateway.http.spill import spill_cause
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.lease import Lease
from gateway.scheduling.pool import NO_BACKEND_RETRY_AFTER, Pool
from gateway.scheduling.ticket import Refusal, RefusalReason, Refused, Ticket
from gateway.scheduling.waiting import MIN_RETRY_AFTER
from gateway.types import NO_MATCH, Clock, Reason
from policies.base import RouteRequest

Decided = Callable[[RequestContext, Ticket, "Lease | Refused"], None]
"""Told of every decision, and of every request that none was made for."""


class Admission:
    """Args:
    decided: None when nobody wants to know.
    """

    def __init__(
        self,
        *,
        index: PrefixIndex,
        facts: FactReader,
        learning: Learning,
        clock: Clock,
        decided: Decided | None = None,
    ) -> None:
        self._index = index
        self._facts = facts
        self._learning = learning
        self._clock = clock
        self._decided = decided

    async def admit(self, context: RequestContext, pool: Pool) -> Lease:
        """The lease of a request, when there is one for it.

        Raises:
            RequestError: it gets none.
            ClientGone: the client left while it waited.
        """
        request, facts = context.request, context.facts
        assert request is not None
        assert facts is not None
        context.phase = "queue"
        ticket = self._ticket(context, request, facts)
        try:
            lease = pool.submit(ticket)
            if lease is None:
                lease = await _wait(context, pool, ticket)
        except Refused as refused:
            context.record.refusal = refused.reason.value
            if self._decided is not None:
                self._decided(context, ticket, refused)
            raise _overloaded(refused) from None
        self._note(context, pool, ticket, lease)
        return lease

    async def again(
        self, context: RequestContext, pool: Pool, tried: tuple[str, ...], *, patience: float | None
    ) -> bool:
        """Have a request that failed go to another backend; what it held is then given back.

        Args:
            patience: seconds that it may wait for its turn there; None for as long as on arrival.
                With 0 it goes only if it can at once.

        Returns:
            Whether it has a lease there.

        Raises:
            ClientGone: the client left while it waited.
        """
        request, facts = context.request, context.facts
        assert request is not None
        assert facts is not None
        match = NO_MATCH
        if request.chain:
            match = self._facts.match(request.chain, facts.scale, facts.aliased)
        request = structs.replace(request, match=match, now=self._clock())
        ticket = self._ticket(context, request, facts, tried)
        if patience is not None:
            limit = ticket.max_wait
            ticket.max_wait = patience if limit is None else min(limit, patience)
        if patience != 0.0:
            self.give_back(context)
        try:
            lease = pool.submit(ticket)
            if lease is None:
                context.phase = "queue"
                lease = await _wait(context, pool, ticket)
        except Refused:
            return False
        self.give_back(context)
        self._note(context, pool, ticket, lease)
        return True

    def _ticket(
        self,
        context: RequestContext,
        request: RouteRequest,
        facts: Facts,
        avoid: tuple[str, ...] = (),
    ) -> Ticket:
        max_wait = facts.max_wait
        if context.ends_at < inf:
            left = max(0.0, context.ends_at - self._clock())
            max_wait = left if max_wait is None else min(left, max_wait)
        return Ticket(
            request,
            context.granted,
            context.refused,
            lambda chain: self._facts.match(chain, facts.scale, facts.aliased),
            max_wait,
            avoid=avoid,
            only=context.owner,
            size=len(context.body),
        )

    def give_back(self, context: RequestContext) -> None:
        """Give back whatever the request holds; nothing happens when that is nothing."""
        if context.booking is not None:
            # After a confirmation this does nothing.
            self._index.withdraw(context.booking)
            context.booking = None
        if context.handover is not None:
            context.handover.end()
            context.handover = None
        if context.remote is not None:
            if context.remote.lease is not None:
                context.remote.lease.release()
            context.remote = None
        lease = context.lease
        if lease is not None:
            if context.relay is not None:
                lease.output_tokens = context.relay.output_tokens
            self._learning.left(context, lease)
            lease.release()
            context.lease = None

    def _note(self, context: RequestContext, pool: Pool, ticket: Ticket, lease: Lease) -> None:
        context.lease = lease
        # What backends hold of its prompt may have changed while it waited.
        request = context.request = ticket.request
        record, decision = context.record, lease.decision
        record.backend = decision.backend
        record.reason = decision.reason
        record.matched_tokens = request.match.tokens.get(decision.backend, 0.0)
        record.uncached_tokens = lease.uncached_tokens
        record.queue_seconds = lease.queue_seconds
        record.spill = None
        if decision.reason is Reason.SPILL:
            record.spill = spill_cause(request, decision.backend, pool, ticket.avoid)
        if self._decided is not None:
            self._decided(context, ticket, lease)


async def _wait(context: RequestContext, pool: Pool, ticket: Ticket) -> Lease:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[Lease] = loop.create_future()
    context.waiting = waiting

    def leave() -> None:
        if not waiting.done():
            waiting.set_exception(ClientGone())

    context.client.on_gone = leave
    if context.client.gone:
        leave()
    try:
        return await waiting
    finally:
        pool.cancel(ticket)
        context.waiting = None


def no_backend(message: str = "No backend that serves this model is available.") -> Overloaded:
    return Overloaded(
        message,
        status=503,
        code=RefusalReason.NO_BACKEND.value,
        retry_after=math.ceil(NO_BACKEND_RETRY_AFTER),
    )


def shutting_down() -> RequestError:
    """Of a request that cannot be waited for any longer."""
    return _overloaded(Refused(Refusal(RefusalReason.SHUTTING_DOWN, MIN_RETRY_AFTER)))


def _overloaded(refused: Refused) -> RequestError:
    reason = refused.reason
    if reason is RefusalReason.ROUTING_FAILED:
        return InternalFailure("The routing policy failed on this request.")
    error = Overloaded(
        _REFUSALS[reason],
        status=refused.status,
        code=reason.value,
        retry_after=math.ceil(refused.retry_after),
    )
    error.close = reason is RefusalReason.SHUTTING_DOWN
    return error


_REFUSALS = {
    RefusalReason.QUEUE_FULL: "Too many requests are waiting.",
    RefusalReason.EXPIRED: "The request waited as long as it may without a backend coming free.",
    RefusalReason.OVERLOAD: "The request would wait longer than it may.",
    RefusalReason.DISPLACED: "Too many requests are waiting, and others have a higher priority.",
    RefusalReason.NO_BACKEND: "No backend that serves this model is available.",
    RefusalReason.SHUTTING_DOWN: "The gateway is shutting down.",
}
