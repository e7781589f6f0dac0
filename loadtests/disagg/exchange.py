"""One request's way over two engines, as the gateway sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from gateway.scheduling.lease import Lease
from gateway.types import Decision
from loadtests.replay.exchange import Exchange
from loadtests.replay.result import Result
from loadtests.replay.trace import TraceRequest
from loadtests.sim.handover import Handover
from loadtests.sim.sequence import Request
from policies.cost import step_seconds

if TYPE_CHECKING:
    from loadtests.disagg.gateway import RoleGateway


class RoleExchange(Exchange):
    """On one engine it is as any other; on two there is a lease for each: the first ends when the
    KV cache has been fetched, the second is taken before the prefill is sent."""

    __slots__ = ("_handover", "_lacking", "_prefill_lease", "_roles", "_second_booking")

    def __init__(
        self,
        gateway: RoleGateway,
        request: TraceRequest,
        result: Result,
        ended: Callable[[], None],
    ) -> None:
        super().__init__(gateway, request, result, ended)
        self._roles = gateway
        self._handover: Handover | None = None

    def _granted(self, lease: Lease) -> None:
        gateway = self._roles
        facts = msgspec.structs.replace(self._ticket.request, now=gateway.time())
        placement = gateway.pair(facts, lease.backend_id)
        gateway.tally.placed(placement)
        if placement is None or not placement.is_remote:
            super()._granted(lease)
            return
        generates, request = placement.decode, self._request
        self._prefill_lease = lease
        self._lacking = facts.prompt_tokens - facts.match.tokens.get(generates, 0.0)
        self._lease = Lease(
            gateway.load(generates),
            Decision(generates, lease.decision.reason),
            lease.work_class,
            facts.prompt_tokens,
            0,
            0.0,
            gateway.time,
            lease.queue_seconds,
            lengths=gateway.lengths,
        )
        self._lease.progress = self._generated
        result, prefill = self._result, gateway.engines[gateway.places[lease.backend_id]]
        result.engine = place = gateway.places[generates]
        self._engine = gateway.engines[place]
        gateway.exchanges[place][self] = None
        result.queue_seconds = lease.queue_seconds
        result.predicted_tokens = facts.match.tokens.get(lease.backend_id, 0.0)
        chain = facts.chain
        self._booking = gateway.index.book(lease.backend_id, chain) if chain else None
        self._second_booking = gateway.index.book(generates, chain) if chain else None
        gateway.speeds.dispatched(lease, streamed=True)
        whole = Request(request.input_tokens, request.output_tokens, gateway.units(request))
        self._handover = gateway.hand_over(whole, prefill, self._engine, self)

    def _generated(self) -> int:
        if self._handover is None:
            return super()._generated()
        leg = self._handover.decode_leg
        return 0 if leg is None else self._engine.generated(leg)

    def on_prefilled(self, now: float) -> None:
        gateway, lease = self._roles, self._prefill_lease
        if self._booking is not None:
            gateway.index.confirm(self._booking)
        lease.first_token()
        gateway.speeds.first_token(lease)
        gateway.speeds.finished(lease)
        gateway.links.began(
            self,
            lease.backend_id,
            self._lease.backend_id,
            self._lacking,
            now,
            lease.prefill_seconds if gateway.pushed else 0.0,
            busy=gateway.load(self._lease.backend_id).pending_seconds(now) > 0.0,
        )

    def on_first_token(self, now: float) -> None:
        handover = self._handover
        if handover is None:
            super().on_first_token(now)
            return
        gateway, lease = self._roles, self._lease
        self._result.first = now
        if self._second_booking is not None:
            gateway.index.confirm(self._second_booking)
        load = gateway.load(lease.backend_id)
        busy = load.pending_seconds(now) > 0.0
        gateway.links.ended(self, now, step_seconds(load), busy=busy)
        gateway.tally.moved(handover)
        self._prefill_lease.release()
        lease.first_token()
        # Only now: what it waited for was the network, not the engine.
        gateway.speeds.dispatched(lease, streamed=True)
        gateway.speeds.first_token(lease)

    def on_finish(self, now: float) -> None:
        handover = self._handover
        if handover is None:
            super().on_finish(now)
            return
        if self._result.first is None:
            self.on_first_token(now)
        result, lease = self._result, self._lease
        result.last = now
        result.cached_tokens = cached = handover.prefill_leg.cached_tokens
        timing = self._engine.profile.timing
        result.prefill_seconds = timing.prefill(cached, result.input_tokens - cached)
        lease.output_tokens = result.output_tokens
        self._leave()
        self._learn(cached)
        lease.release()
        self._ended()
