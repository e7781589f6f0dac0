"""One attempt to have a request prefilled by one engine and decoded by another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from gateway.disagg.connector import Connector, Leg, NoTransfer, Pairing
from gateway.disagg.holding import Holding
from gateway.disagg.prefill_leg import PrefillLeg
from gateway.disagg.transfer import Transfer
from gateway.fleet.time_limits import TimeLimits
from gateway.fleet.upstream import Connection, FailureKind, Upstream, UpstreamFailure
from gateway.scheduling.lease import Lease
from gateway.types import Clock

LEAST_PATIENCE = 10.0
PATIENCE = 4.0
"""A prefill leg may take this many times as long as it should, and `LEAST_PATIENCE` in any case:
what takes longer is done sooner by the decode engine alone."""
_NO_LEG = Leg(b"")


class HandoverFailed(Exception):
    """The decode leg has nothing to fetch (any more).

    Attributes:
        cause: of the prefill leg's failure; None when its answer is too old.
    """

    def __init__(self, cause: BaseException | None) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Stale(Exception):
    """A kept connection was closed just as it was taken. What was sent on it must not be sent again
    as it was."""


class Handover:
    """Made with both leases, ended once with `end`, on every path. Its pairing is used for one
    decode leg and never again, whatever becomes of it.

        send ──► prefilled ──► make_decode_leg ──► sent ──► taken ──► end
                    └─────────────────┴─────────────┴── end: what is held is released

    What it leaves at the prefill engine is told once, whatever becomes of it: by `end`, or, where
    the prefill leg is hung up on, as soon as that is over.

    Args:
        body: the client's, as it is for the decode engine.
        decode_id: the decode engine.
        fresh: no kept connections are used: one of them was closed before.
        lease: at the prefill engine; given back here.
        on_over: told once, when the prefill leg is over or given up: whether its answer came.
        on_closed: told once what the prefill engine holds for nobody.

    Attributes:
        task: the prefill leg; None before it is sent.
        prefilled_at: when the answer was there; None before, and where both legs are sent at once.
        sent: the decode leg went out.
        decode_leg: once it is made.
        taken: the decode engine has shown that it has what was handed over.
        answered: it answers the request, and so sees to what the other one holds.
        no_transfer: why the prefill leg's answer is of no use; None where it is.
        transfer: of the cache between the two; None before the prefill leg is over.
    """

    __slots__ = (
        "_clock",
        "_ended",
        "_on_closed",
        "_on_over",
        "_over",
        "_prefill",
        "answer",
        "answered",
        "body",
        "connector",
        "decode_id",
        "decode_leg",
        "fresh",
        "lease",
        "no_transfer",
        "pairing",
        "prefilled_at",
        "sent",
        "taken",
        "task",
        "transfer",
    )

    def __init__(
        self,
        connector: Connector,
        pairing: Pairing,
        body: bytes,
        decode_id: str,
        lease: Lease,
        clock: Clock,
        *,
        fresh: bool,
        on_over: Callable[[Handover, bool], None],
        on_closed: Callable[[Handover, Holding], None],
    ) -> None:
        self.connector = connector
        self.pairing = pairing
        self.body = body
        self.decode_id = decode_id
        self.fresh = fresh
        self.lease = lease
        self.decode_leg = _NO_LEG
        self.answer: bytes | None = None
        self.prefilled_at: float | None = None
        self.sent = self.taken = self.answered = self._ended = False
        self._clock = clock
        self._on_over = on_over
        self._on_closed = on_closed
        self._over = False
        self._prefill: PrefillLeg | None = None
        self.task: asyncio.Task[None] | None = None
        self.no_transfer: NoTransfer | None = None
        self.transfer: Transfer | None = None

    @property
    def prefill_id(self) -> str:
        return self.lease.backend_id

    def limits(self, limits: TimeLimits, ends_at: float) -> tuple[TimeLimits, float]:
        """How long the prefill leg may take, given the limits of any request for its prefill."""
        now = self._clock()
        patience = max(LEAST_PATIENCE, PATIENCE * (self.lease.prefill_due - now))
        first_byte = min(limits.first_byte, patience)
        most = ends_at if self.connector.concurrent else min(ends_at, now + 2.0 * patience)
        return limits._replace(first_byte=first_byte), most

    def send(
        self,
        upstream: Upstream,
        head: bytes,
        body: bytes,
        limits: TimeLimits,
        ends_at: float,
    ) -> None:
        """Send the prefill leg. Its `task` ends with the answer, or raises UpstreamFailure,
        LegRefused, NoTransfer, Stale or OutOfDescriptors."""
        task = self.task = asyncio.create_task(self._run(upstream, head, body, limits, ends_at))
        # Where both legs are sent at once, nobody may be left to ask.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _run(
        self, upstream: Upstream, head: bytes, body: bytes, limits: TimeLimits, ends_at: float
    ) -> None:
        served = False
        try:
            connection = None if self.fresh else upstream.idle()
            if connection is None:
                left = max(0.0, ends_at - self._clock())
                connection = await upstream.dial(min(limits.connect, left))
            leg = self._prefill = PrefillLeg(needed=not self.connector.concurrent)
            leg.carry(connection)
            connection.send(head, body, leg, limits, ends_at=ends_at)
            try:
                self.answer = await leg.done
            except UpstreamFailure as failure:
                raise Stale if is_stale(failure, connection) else failure from None
            served = True
            if not self.connector.concurrent:
                self.prefilled_at = self._clock()
        finally:
            self.prefill_over(served=served)

    @property
    def running(self) -> asyncio.Task[None] | None:
        """The prefill leg, while it may still fail a decode leg that was sent with it."""
        task = self.task
        return None if task is None or not self.connector.concurrent or self.taken else task

    @property
    def failure(self) -> BaseException | None:
        """Why the prefill leg failed; None while it has not."""
        task = self.task
        if task is None or not task.done() or task.cancelled():
            return None
        return task.exception()

    def prefill_over(self, *, served: bool) -> None:
        """The prefill engine has done its work for the request, or will not: its load ends."""
        if not self._over:
            self._over = True
            self._on_over(self, served)

    def make_decode_leg(self) -> None:
        """Make what the decode engine is sent.

        Raises:
            NoTransfer: the prefill leg's answer has nothing that it could use.
        """
        answer = None if self.connector.concurrent else self.answer
        self.decode_leg = self.connector.decode(self.body, self.pairing, answer)

    @property
    def send_before(self) -> float:
        """When the decode leg must have been sent, on the clock."""
        if self.connector.fetch_within is None or self.prefilled_at is None:
            return inf
        return self.prefilled_at + self.connector.fetch_within

    def take(self) -> None:
        """The decode engine has begun to answer."""
        self.taken = True
        self.prefill_over(served=True)

    def end(self) -> None:
        """Nothing more comes of it, or all has."""
        if self._ended:
            return
        self._ended = True
        task, leg = self.task, self._prefill
        broken_off = task is not None and not task.done()
        if task is not None:
            task.cancel()
        self.prefill_over(served=False)  # after a task's end this does nothing
        if self.transfer is not None:
            self.transfer.dropped()
        if leg is None:
            self._on_closed(self, Holding.NOTHING)  # nothing was sent
        elif broken_off:
            self._break_off(leg)
        else:
            self._close(leg)

    def _break_off(self, leg: PrefillLeg) -> None:
        """Nobody waits for the prefill leg's answer any more, be it there or not."""
        missing = leg.done.cancelled() and self.connector.holds and not self._fetched
        if missing and self.connector.release(self.pairing, None) is None:
            # What it takes to let go of the prompt, or to know of none, may be under way.
            leg.hang_up(lambda: self._close(leg))
        else:
            leg.cancel()
            self._close(leg)

    def _close(self, leg: PrefillLeg) -> None:
        if self.answer is None:
            self.answer = leg.answer
        if self.answer is not None and self.connector.holds and self.decode_leg is _NO_LEG:
            # Nobody has looked at it: it may say that there is nothing to let go of.
            try:
                self.make_decode_leg()
            except NoTransfer as none:
                self.no_transfer = none
            if self.decode_leg.final:
                self.no_transfer = NoTransfer("the prefill leg's answer is all of it")
        self._on_closed(self, Holding.NOTHING if self._fetched else leg.holding)

    @property
    def _fetched(self) -> bool:
        return self.taken or (self.answered and self.connector.sees_to_it)


def is_stale(failure: UpstreamFailure, connection: Connection) -> bool:
    """Whether a failure shows no more than that a kept connection had been closed."""
    return failure.kind is FailureKind.RESET and connection.reused
