"""One request's way through a gateway in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gateway.prefix.holder import Booking as Booked
from gateway.scheduling.lease import Lease
from gateway.scheduling.ticket import Refusal, RefusalReason, Refused, Ticket
from loadtests.replay.knowledge import Booking, Output
from loadtests.replay.result import Result
from loadtests.replay.trace import TraceRequest
from loadtests.sim.sequence import Request

if TYPE_CHECKING:
    from loadtests.replay.gateway import VirtualGateway


BROKEN = "broken"
"""Why a request has no answer that its engine had begun."""


class Exchange:
    """What the engine tells of the request comes here."""

    __slots__ = (
        "_booking",
        "_ended",
        "_engine",
        "_gateway",
        "_lease",
        "_request",
        "_result",
        "_sequence",
        "_ticket",
    )

    def __init__(
        self,
        gateway: VirtualGateway,
        request: TraceRequest,
        result: Result,
        ended: Callable[[], None],
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._result = result
        self._ended = ended

    def enter(self) -> None:
        gateway = self._gateway
        facts = gateway.route_request(self._request)
        self._result.work_class = facts.work_class
        self._submit(Ticket(facts, self._granted, self._refused, gateway.match))

    def _submit(self, ticket: Ticket) -> None:
        self._ticket = ticket
        try:
            lease = self._gateway.pool.submit(ticket)
        except Refused as refused:
            self._refused(refused.refusal)
        else:
            if lease is not None:
                self._granted(lease)

    def _granted(self, lease: Lease) -> None:
        gateway, request, result = self._gateway, self._request, self._result
        facts = self._ticket.request
        id = lease.backend_id
        self._lease = lease
        result.engine = place = gateway.places[id]
        self._engine = gateway.engines[place]
        gateway.exchanges[place][self] = None
        result.queue_seconds = lease.queue_seconds
        result.predicted_tokens = facts.match.tokens.get(id, 0.0)
        lease.progress = self._generated
        knowledge = gateway.knowledge
        self._booking: Booked | None = None
        if knowledge.booking is Booking.DISPATCH:
            self._book()
        if knowledge.rates:
            gateway.speeds.dispatched(lease, streamed=True)
        self._sequence = self._engine.submit(
            Request(request.input_tokens, request.output_tokens, gateway.units(request)), self
        )

    def _book(self) -> None:
        chain = self._ticket.request.chain
        if chain and self._gateway.knowledge.index:
            self._booking = self._gateway.index.book(self._lease.backend_id, chain)

    def _refused(self, refusal: Refusal) -> None:
        if refusal.reason is RefusalReason.ROUTING_FAILED:
            raise RuntimeError("the policy failed on a request; the log says how")
        self._result.refusal = refusal.reason.value
        self._ended()

    def broken(self) -> None:
        """The engine is gone. Before the first token the request goes to another if it can at once,
        as the live gateway retries; after it the answer is lost."""
        gateway, result, lease = self._gateway, self._result, self._lease
        self._leave()
        self._engine.abort(self._sequence)
        if self._booking is not None:
            gateway.index.withdraw(self._booking)
        gateway.speeds.dropped(lease)
        lease.release()
        if result.first is not None:
            result.first, result.refusal = None, BROKEN
            self._ended()
            return
        facts = self._ticket.request
        facts = msgspec.structs.replace(facts, match=gateway.match(facts.chain), now=gateway.time())
        self._submit(Ticket(facts, self._granted, self._refused, max_wait=0.0))

    def _leave(self) -> None:
        del self._gateway.exchanges[self._result.engine][self]

    def _generated(self) -> int:
        return self._engine.generated(self._sequence)

    def on_first_token(self, now: float) -> None:
        self._result.first = now
        gateway = self._gateway
        if gateway.knowledge.booking is Booking.FIRST_TOKEN:
            self._book()
        if self._booking is not None:
            gateway.index.confirm(self._booking)
        self._lease.first_token()
        if gateway.knowledge.rates:
            gateway.speeds.first_token(self._lease)

    def on_token(self, now: float) -> None:
        """Engines that skip ahead do not tell of later tokens."""

    def on_finish(self, now: float) -> None:
        result, lease = self._result, self._lease
        if result.first is None:
            self.on_first_token(now)
        result.last = now
        result.cached_tokens = cached = self._sequence.cached_tokens
        timing = self._engine.profile.timing
        result.prefill_seconds = timing.prefill(cached, result.input_tokens - cached)
        lease.output_tokens = result.output_tokens
        self._leave()
        self._learn(cached)
        lease.release()
        self._ended()

    def _learn(self, cached: int) -> None:
        gateway, knowledge = self._gateway, self._gateway.knowledge
        if knowledge.output is Output.LEARNT:
            gateway.answered(self._request, self._ticket.request)
        if knowledge.capacity and self._booking is not None:
            gateway.index.learn(self._booking, cached / gateway.token_ratio)
        if knowledge.rates:
            gateway.speeds.finished(self._lease)
