"""The backends that serve one model in one role, and the tickets that wait for them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.config import Scheduling
from gateway.scheduling.classify import uncached_tokens
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.queue import ClassQueue
from gateway.scheduling.room import has_any_room, with_room
from gateway.scheduling.share import PrefillShare
from gateway.scheduling.ticket import Refusal, RefusalReason, Refused, Ticket
from gateway.types import Clock, Role, WorkClass
from policies.base import Policy, RouteRequest

logger = logging.getLogger("prefixgate.scheduling")

_PREFILL = WorkClass.PREFILL

MIN_RETRY_AFTER = 1.0
MAX_RETRY_AFTER = 60.0
NO_BACKEND_RETRY_AFTER = 5.0
"""About the time in which health probes bring a backend back."""


@dataclass(slots=True, frozen=True)
class QueueSnapshot:
    waiting: int
    oldest_wait: float
    granted: int
    cancelled: int
    refused: Mapping[RefusalReason, int]


@dataclass(slots=True, frozen=True)
class PoolSnapshot:
    model: str
    role: Role
    backends: tuple[str, ...]
    queues: Mapping[WorkClass, QueueSnapshot]


class Pool:
    """Grants leases within the limits of each backend and class.

    Both classes have limits of their own, so neither can take the other's room. What can be
    granted is granted at once: after every call nothing waits that fits somewhere and has no
    ticket of its class before it. Where several tickets can go in one sweep (a backend came back,
    a limit was raised) decode goes first, and prefill gets its share of the order.

    Choosing a backend and reserving room there is one step, with nothing in between.

    Args:
        model: the model all requests here ask for.
        role: the role all backends here have.
        policy: chooses among the backends with room.
        scheduling: limits and share.
        clock: seconds; the only source of time.
    """

    def __init__(
        self, model: str, role: Role, policy: Policy, scheduling: Scheduling, clock: Clock
    ) -> None:
        self.model = model
        self.role = role
        self.policy = policy
        self._scheduling = scheduling
        self._clock = clock
        self._backends: tuple[BackendLoad, ...] = ()
        self._prefill = ClassQueue(WorkClass.PREFILL, scheduling.prefill)
        self._decode = ClassQueue(WorkClass.DECODE, scheduling.decode)
        self._share = PrefillShare()
        self._pumping = False
        self._closed = False

    # what is set from outside, at any time

    @property
    def scheduling(self) -> Scheduling:
        return self._scheduling

    @scheduling.setter
    def scheduling(self, scheduling: Scheduling) -> None:
        """Tickets that wait keep their place and their deadline."""
        self._scheduling = scheduling
        self._prefill.limits = scheduling.prefill
        self._decode.limits = scheduling.decode
        self.pump()

    @property
    def backends(self) -> tuple[BackendLoad, ...]:
        return self._backends

    def set_backends(self, backends: Sequence[BackendLoad]) -> None:
        """Set which backends can be chosen from now on.

        Leases at a backend that leaves go on and still count when it comes back: a backend keeps
        its one `BackendLoad`. With none left, tickets that wait stay until their deadline, since
        backends may come back before it.

        Raises:
            ValueError: two of them have the same id.
        """
        if len({load.id for load in backends}) != len(backends):
            raise ValueError(f"pool {self.model!r}: a backend is listed twice")
        for load in self._backends:
            load.unwatch(self.pump)
        self._backends = tuple(backends)
        for load in self._backends:
            load.watch(self.pump)
        self.pump()

    def close(self) -> None:
        """Refuse everything that waits, and whatever comes later. Leases go on."""
        self._closed = True
        for queue in (self._decode, self._prefill):
            self._refuse_all(queue, queue.pop_all(), RefusalReason.SHUTTING_DOWN)

    # a ticket's way

    def submit(self, ticket: Ticket) -> Lease | None:
        """Grant a lease at once, or let the ticket wait.

        Returns:
            The lease, or None when the ticket now waits for one of its callbacks.

        Raises:
            Refused: shutting down, no backend, queue full, not ready to wait, or the policy
                failed. The callbacks are not called.
        """
        prefill, decode = self._prefill, self._decode
        queue = prefill if ticket.request.work_class is _PREFILL else decode
        if self._closed:
            raise self._refused(queue, RefusalReason.SHUTTING_DOWN)
        if not self._backends:
            raise self._refused(queue, RefusalReason.NO_BACKEND)
        if prefill.tickets or decode.tickets:
            # Those who wait go before a newcomer, and those who are overdue leave their place.
            self.pump()
        now = self._clock()
        if not queue.tickets:
            candidates = self._open_to(queue, ticket)
            if candidates:
                try:
                    return self._grant(queue, ticket.request, candidates, now, 0.0)
                except RoutingFailed:
                    raise self._refused(queue, RefusalReason.ROUTING_FAILED) from None
        if queue.is_full():
            raise self._refused(queue, RefusalReason.QUEUE_FULL)
        ticket.start(now, queue.limits.max_wait)
        if ticket.deadline <= now:
            raise self._refused(queue, RefusalReason.EXPIRED)
        queue.push(ticket)
        return None

    def cancel(self, ticket: Ticket) -> None:
        """Take out a ticket whose client left. Nothing happens when it no longer waits."""
        queue = self._queue(ticket.request.work_class)
        if queue.remove(ticket):
            queue.cancelled += 1
            self.pump()

    def expire(self) -> None:
        """Refuse overdue tickets. To be called a few times a second."""
        self.pump()

    def pump(self) -> None:
        """Grant what can be granted; refuse what is overdue.

        Callbacks may release, submit and cancel: calls from within return at once, because the
        loop below looks again after every callback.
        """
        # Asked at each release: the dicts themselves spare two calls.
        if self._pumping or not (self._prefill.tickets or self._decode.tickets):
            return
        self._pumping = True
        try:
            while True:
                now = self._clock()
                for queue in (self._decode, self._prefill):
                    self._refuse_all(queue, queue.pop_overdue(now), RefusalReason.EXPIRED)
                if not self._settle_one(now):
                    return
        finally:
            self._pumping = False

    # reading

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not (self._prefill or self._decode)

    def depth(self, work_class: WorkClass) -> int:
        """How many tickets wait."""
        return len(self._queue(work_class))

    def oldest_wait(self, work_class: WorkClass) -> float:
        """Seconds that the ticket at the head has waited; 0 when nothing waits."""
        return self._queue(work_class).oldest_wait(self._clock())

    def granted(self, work_class: WorkClass) -> int:
        """Leases granted so far."""
        return self._queue(work_class).granted

    def refused(self, work_class: WorkClass) -> Mapping[RefusalReason, int]:
        """Tickets refused so far, by reason."""
        return self._queue(work_class).refused

    def candidates(self, request: RouteRequest) -> list[BackendLoad]:
        """The backends that the policy could choose among now."""
        return with_room(self._backends, self._queue(request.work_class).limits, request)

    def snapshot(self) -> PoolSnapshot:
        now = self._clock()
        return PoolSnapshot(
            self.model,
            self.role,
            tuple(load.id for load in self._backends),
            {
                queue.work_class: QueueSnapshot(
                    len(queue),
                    queue.oldest_wait(now),
                    queue.granted,
                    queue.cancelled,
                    dict(queue.refused),
                )
                for queue in (self._prefill, self._decode)
            },
        )

    # how it is done

    def _queue(self, work_class: WorkClass) -> ClassQueue:
        return self._prefill if work_class is _PREFILL else self._decode

    def _settle_one(self, now: float) -> bool:
        """Grant (or, when the policy fails on it, refuse) one waiting ticket, if one can go."""
        prefill, decode = self._prefill, self._decode
        both = bool(prefill and decode)
        share = self._scheduling.prefill_share
        prefill_first = both and self._share.is_due(share)
        for queue in (prefill, decode) if prefill_first else (decode, prefill):
            if queue and self._settle_head(queue, now):
                if both:
                    self._share.released(share, prefill=queue is prefill)
                return True
        return False

    def _settle_head(self, queue: ClassQueue, now: float) -> bool:
        # Spares the look-up of those that cannot go anyway.
        if not has_any_room(self._backends, queue.limits, queue.work_class):
            return False
        ticket = queue.head()
        try:
            request = ticket.refresh(now)
            candidates = self._open_to(queue, ticket)
            if not candidates:
                return False
            queue.remove(ticket)
            lease = self._grant(queue, request, candidates, now, now - ticket.submitted)
        except RoutingFailed:
            self._refuse_all(queue, [ticket], RefusalReason.ROUTING_FAILED)
            return True
        queue.note_pace(now)
        try:
            ticket.on_grant(lease)
        except BaseException:
            lease.release()
            raise
        return True

    def _grant(
        self,
        queue: ClassQueue,
        request: RouteRequest,
        candidates: list[BackendLoad],
        now: float,
        waited: float,
    ) -> Lease:
        """Raises:
        RoutingFailed: the policy did; it has been logged.
        """
        try:
            decision = self.policy.choose(request, candidates)
            chosen = decision.backend
            for load in candidates:
                if load.id == chosen:
                    break
            else:
                raise LookupError(f"{chosen!r} is not a candidate")
        except Exception:
            # Third parties write policies, and this may run inside another request's release.
            logger.exception("policy %s failed on a request for %r", self.policy.name, self.model)
            raise RoutingFailed from None
        queue.granted += 1
        return Lease(
            load,
            decision,
            queue.work_class,
            request.prompt_tokens,
            uncached_tokens(request, chosen),
            now,
            waited,
        )

    def _open_to(self, queue: ClassQueue, ticket: Ticket) -> list[BackendLoad]:
        """The backends that have room for a ticket's request and are not to be avoided."""
        roomy = with_room(self._backends, queue.limits, ticket.request)
        avoid = ticket.avoid
        return [load for load in roomy if load.id not in avoid] if avoid else roomy

    def _refuse_all(
        self, queue: ClassQueue, tickets: Sequence[Ticket], reason: RefusalReason
    ) -> None:
        for ticket in tickets:
            ticket.on_refuse(self._refusal(queue, reason))

    def _refused(self, queue: ClassQueue, reason: RefusalReason) -> Refused:
        return self._refusal(queue, reason).error()

    def _refusal(self, queue: ClassQueue, reason: RefusalReason) -> Refusal:
        queue.refused[reason] += 1
        match reason:
            case RefusalReason.NO_BACKEND:
                seconds = NO_BACKEND_RETRY_AFTER
            case RefusalReason.QUEUE_FULL | RefusalReason.EXPIRED:
                seconds = queue.drain_seconds(self._clock())
            case RefusalReason.SHUTTING_DOWN | RefusalReason.ROUTING_FAILED:
                # Another gateway, or another try, can take it right away.
                seconds = MIN_RETRY_AFTER
        return Refusal(reason, min(max(seconds, MIN_RETRY_AFTER), MAX_RETRY_AFTER))


class RoutingFailed(Exception):
    """The policy raised, or chose what was no candidate."""
