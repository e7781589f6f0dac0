"""What requests teach, and what is expected of the next ones by it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gateway.disagg.handover import Handover
from gateway.estimates.errors import Errors, Estimate
from gateway.estimates.outputs import Outputs
from gateway.estimates.tokens import NOMINAL_BYTES, TokenEstimate
from gateway.http.context import RequestContext
from gateway.http.outcome import handover_usage
from gateway.prefix.holder import Booking
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.speeds import Speeds
from gateway.types import HASH_BYTES, Clock, Outcome

logger = logging.getLogger("prefixgate.learning")

RESTATED = 1.25
"""The index counts in bytes, engines say their capacity in tokens. It is stated anew when the bytes
of a token have changed by this factor; each time what was learnt about it is dropped."""

LEARNT = 25
"""Answers that are learnt from between two refreshes: where there are more, every second or third
one and so on. Hundreds settle an estimate, and what thousands a second add would only take time."""


_FORGOTTEN = (
    "backend %s reports nothing cached of prompts that it was sure to hold: its prefixes are"
    " forgotten"
)


class _Measured:
    """What is measured of one backend.

    Attributes:
        model: what it runs.
        capacity: of its KV cache, in the engine's tokens.
        bytes_per_token: with which that was last stated to the index.
        tells_cached: dialects in which it has ever reported cached tokens.
    """

    __slots__ = ("bytes_per_token", "capacity", "model", "tells_cached")

    def __init__(self, model: str, capacity: float) -> None:
        self.model = model
        self.capacity = capacity
        self.bytes_per_token = NOMINAL_BYTES
        self.tells_cached: set[str] = set()


class Learning:
    """Args:
    loads: the ledgers, by backend id, into which learnt rates are written.
    """

    def __init__(
        self, *, index: PrefixIndex, loads: Mapping[str, BackendLoad], clock: Clock
    ) -> None:
        self.tokens = TokenEstimate()
        self.outputs = Outputs()
        self.errors = Errors()
        self.speeds = Speeds(loads, clock)
        self._index = index
        self._clock = clock
        self._backends: dict[str, _Measured] = {}
        self._answers = 0
        """Since the last refresh."""
        self._stride = 1
        """One of so many answers is learnt from."""

    # the fleet's backends

    def backend_changed(self, id: str, model: str, capacity: float) -> None:
        """Hear of a backend, before requests go there, and of every change.

        Args:
            model: what it runs, as far as it is known.
        """
        self.speeds.backend_changed(id, model, capacity)
        known = self._backends.get(id)
        if known is None or known.model != model:
            known = self._backends[id] = _Measured(model, capacity)
        known.capacity = capacity
        self._state_capacity(id, known)

    def backend_removed(self, id: str) -> None:
        self.speeds.backend_removed(id)
        self._backends.pop(id, None)

    # a request's way

    def dispatched(self, lease: Lease, *, streamed: bool) -> None:
        """Args:
        streamed: its first token will be seen.
        """
        self.speeds.dispatched(lease, streamed=streamed)

    def first_token(self, lease: Lease) -> None:
        self.speeds.first_token(lease)
        expected = lease.prefill_due - lease.granted_at
        self.errors.note(Estimate.FIRST_TOKEN, expected, self._clock() - lease.granted_at)

    def joined(self, lease: Lease) -> None:
        """A stream that was prefilled elsewhere has begun."""
        self.speeds.dispatched(lease, streamed=True)
        self.speeds.first_token(lease)

    def prefilled(
        self, context: RequestContext, handover: Handover, booking: Booking | None
    ) -> None:
        """A prefill leg is done."""
        lease = handover.lease
        if handover.prefilled_at is None:
            self.speeds.dropped(lease)  # when it was done, nobody saw
            return
        self.first_token(lease)
        self.speeds.finished(lease)
        facts, usage = context.facts, handover_usage(context, handover)
        if facts is None or usage is None or usage.cached_tokens is None or booking is None:
            return
        self.errors.note(Estimate.CACHED_TOKENS, context.record.matched_tokens, usage.cached_tokens)
        if self._index.learn(booking, usage.cached_tokens / facts.scale):
            logger.warning(_FORGOTTEN, lease.backend_id)

    def dropped(self, lease: Lease) -> None:
        """A prefill leg has failed, or nobody wants it any more."""
        self.speeds.dropped(lease)

    def answered(self, context: RequestContext) -> None:
        """An answer has ended, in whatever way; its record is filled in, and the request still
        holds its lease."""
        record, facts, request = context.record, context.facts, context.request
        lease, booking = context.lease, context.booking
        if facts is None or request is None or lease is None:
            return
        prompt = facts.prompt
        reported = record.reported_prompt_tokens if prompt.prompt_bytes else None
        remote = context.handover is not None
        cached = None
        if reported and not remote:
            # Of a handover the prefill leg has told it: to the decode engine all is cached.
            cached = record.reported_cached_tokens = self._cached_tokens(context, lease.backend_id)
        self._answers += 1
        if self._answers % self._stride:
            return
        errors = self.errors
        if record.outcome is Outcome.OK and prompt.generates and record.output_tokens:
            errors.note(Estimate.OUTPUT_TOKENS, request.output_tokens, record.output_tokens)
            held = request.match.blocks
            self.outputs.learn(
                prompt.model,
                record.dialect,
                request.tenant,
                # What nobody had sent before is nobody's template.
                request.chain[: HASH_BYTES * max(held.values())] if held else b"",
                prompt.max_output_tokens,
                record.output_tokens,
            )
        if not reported:
            return
        errors.note(Estimate.PROMPT_TOKENS, request.prompt_tokens, reported)
        model = context.real_model or prompt.model
        self.tokens.learn(model, facts.content, prompt.prompt_bytes, reported)
        if cached is not None and booking is not None:
            errors.note(Estimate.CACHED_TOKENS, record.matched_tokens, cached)
            if self._index.learn(booking, cached / facts.scale):
                logger.warning(_FORGOTTEN, lease.backend_id)

    def left(self, context: RequestContext, lease: Lease) -> None:
        """A lease is about to be given back."""
        if context.record.outcome is Outcome.OK:
            self.speeds.finished(lease)
        else:
            self.speeds.dropped(lease)

    # on the clock

    def refresh(self) -> None:
        """Write what was learnt where it is used; to be called a few times a second."""
        self._stride = 1 + self._answers // LEARNT
        self._answers = 0
        self.speeds.refresh()
        for id, known in self._backends.items():
            self._state_capacity(id, known)

    # how it is done

    def _cached_tokens(self, context: RequestContext, backend: str) -> int | None:
        """Cached tokens as the engine reports them; None where it never does."""
        record, known = context.record, self._backends.get(backend)
        cached = record.reported_cached_tokens
        if known is None:
            return cached
        if cached is not None:
            known.tells_cached.add(record.dialect)
        elif record.dialect in known.tells_cached:
            # Some engines leave the count out when it is 0. To leave those answers out here would
            # hide the very requests whose prediction was most wrong.
            return 0
        return cached

    def _state_capacity(self, id: str, known: _Measured) -> None:
        now = self.tokens.bytes_per_token(known.model)
        if not 1 / RESTATED < now / known.bytes_per_token < RESTATED:
            known.bytes_per_token = now
        self._index.set_capacity(id, known.capacity * known.bytes_per_token / NOMINAL_BYTES)
