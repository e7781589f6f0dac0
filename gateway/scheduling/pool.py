"""The backends that serve one model in one role, and the tickets that wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.config import Scheduling
from gateway.scheduling.granter import Granter
from gateway.scheduling.hold import Hold
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.placer import Placer, RoutingFailed, Screen
from gateway.scheduling.ticket import RefusalReason, Ticket
from gateway.scheduling.waiting import Waiting
from gateway.types import Clock, Role, WorkClass
from policies.base import Policy, RouteRequest
from policies.cost import own_prefill_seconds

NO_BACKEND_RETRY_AFTER = 5.0
"""About the time in which health probes bring a backend back."""

LOOKED_AT = 128
"""Backends that one tick looks at, at most: it must not take longer than a few milliseconds."""


@dataclass(slots=True, frozen=True)
class QueueSnapshot:
    waiting: int
    waiting_tokens: int
    oldest_wait: float
    granted: int
    cancelled: int
    refused: Mapping[RefusalReason, int]


@dataclass(slots=True, frozen=True)
class PoolSnapshot:
    """Attributes:
    backends: by id, how many tickets stand in line for each.
    unplaced: tickets that no backend has room for.
    tenants: how many have requests waiting.
    """

    model: str
    role: Role
    backends: Mapping[str, int]
    unplaced: int
    tenants: int
    queues: Mapping[WorkClass, QueueSnapshot]


class Pool:
    """Grants leases within the limits of each backend and class, late: while a backend has enough
    prefill pending, what is meant for it waits here, where its order can change and where it can
    still go elsewhere. Where the gate is open, what the KV cache has no room for is held too, and
    a prefill that the streams there could not bear; others, newcomers too, go past those.

    Each waiting ticket stands in the line of the backend that the policy chose for it, and its
    prefill counts as queued there for those that go after it. When the backend can take it, it is
    looked at anew; if by now it is better off elsewhere, it goes there. A backend with nothing in
    line takes from the others' lines what the policy now rather gives to it. What no backend has
    room for, under the hard limits, waits in every line.

    Work conservation: nothing waits in a backend's line that can go there and that the policy still
    gives to it; and nothing that can go to a backend with nothing in line and that the policy would
    give to it waits for more than `RELOOK` seconds. This holds after each release, first token,
    submission and call of `expire`, within `SCAN` tickets in each line.

    Bounds: `Turns` for priorities and classes, `Tenants` for tenants, `Lane` for tickets that
    differ in nothing else, `Placer` for those that wait for room, memory or streams.

    A backend whose first tokens cannot be seen is sent work as fast as it is assumed to prefill or
    as its answers end, whichever is faster: the gate can hold up one that is faster than assumed,
    but never below the assumed rate.

    Choosing a backend and reserving room there is one step, with nothing in between.

    Args:
        model: the model all requests here ask for.
        role: the role all backends here have.
        policy: chooses among the backends with room.
        scheduling: limits, gate and shares.
        clock: seconds; the only source of time.

    Attributes:
        avoided: backends that could be chosen too, but for being busy while these are not.
        members: all backends, those included.
        screen: what else a backend must be able to do for a request; None for nothing.
    """

    def __init__(
        self, model: str, role: Role, policy: Policy, scheduling: Scheduling, clock: Clock
    ) -> None:
        self.model = model
        self.role = role
        self._clock = clock
        self._placer = Placer(policy, scheduling)
        self._waiting = Waiting(self._placer, clock)
        self._granter = Granter(self._waiting, self._placer, clock)
        self.avoided: tuple[BackendLoad, ...] = ()
        self.members: tuple[BackendLoad, ...] = ()
        self.screen: Screen | None = None
        self._tickets = 0
        self._next_look = 0
        self._closed = False

    # what is set from outside, at any time

    @property
    def policy(self) -> Policy:
        return self._placer.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._placer.policy = policy

    @property
    def scheduling(self) -> Scheduling:
        return self._placer.scheduling

    @scheduling.setter
    def scheduling(self, scheduling: Scheduling) -> None:
        """Tickets that wait keep their class, their deadline and the longest wait they were
        given."""
        self._placer.scheduling = scheduling
        self._waiting.set_scheduling(scheduling)
        self.expire()

    @property
    def backends(self) -> tuple[BackendLoad, ...]:
        return self._placer.backends

    def set_backends(
        self,
        backends: Sequence[BackendLoad],
        avoided: Sequence[BackendLoad] = (),
        screen: Screen | None = None,
    ) -> None:
        """Set which backends can be chosen from now on, which others are avoided, and what else is
        asked of one.

        Leases at a backend that leaves go on and still count when it comes back: a backend keeps
        its one `BackendLoad`. With none left, tickets that wait stay until they expire, since
        backends may come back before.

        Raises:
            ValueError: two of them have the same id.
        """
        if len({load.id for load in backends}) != len(backends):
            raise ValueError(f"pool {self.model!r}: a backend is listed twice")
        for load in self.backends:
            load.unwatch(self._granter.serve)
        self.avoided = tuple(avoided)
        self.members = (*backends, *avoided)
        self.screen = self._placer.screen = screen
        self._placer.set_backends(backends)
        self._waiting.lines.set_backends(backends)
        for load in backends:
            load.watch(self._granter.serve)
        self.expire()

    def close(self) -> None:
        """Refuse everything that waits, and whatever comes later. Leases go on."""
        self._closed = True
        for queue in self._waiting.queues:
            for ticket in tuple(queue):
                self._waiting.refuse(ticket, RefusalReason.SHUTTING_DOWN)

    # a ticket's way

    def submit(self, ticket: Ticket) -> Lease | None:
        """Grant a lease at once, or let the ticket wait.

        One that is not ready to wait goes only where a gate is open and memory has room, whatever
        its prefill does to the streams there.

        Returns:
            The lease, or None when the ticket now waits for one of its callbacks.

        Raises:
            Refused: shutting down, no backend, queue full, overload, not ready to wait, or the
                policy failed. The callbacks are not called.
        """
        work_class = ticket.request.work_class
        waiting, lines, placer = self._waiting, self._waiting.lines, self._placer
        now = self._clock()
        waiting.drop_overdue(now)
        if not self.backends and not self._closed:
            reason = RefusalReason.NO_BACKEND
            raise waiting.refused(work_class, reason, NO_BACKEND_RETRY_AFTER)
        self._tickets += 1
        queue = waiting.queue(work_class)
        ticket.arrive(self._tickets, now, queue.limits.max_wait)
        at_once = ticket.expires <= now
        load = self._look(ticket, now, at_once)
        if waiting and load is not None and lines.wait_for(load) and placer.is_open(load, now):
            self._granter.serve(load)  # those who wait go before a newcomer
            load = self._look(ticket, now, at_once)
        # Whoever is still in line there waits for memory or for the streams, and in nobody's way.
        if load is not None and placer.may_go(
            ticket, load, now, lighter=lines.lighter(load, ticket.request)
        ):
            return self._granter.grant(ticket, load, now)
        if at_once:
            raise waiting.refused(work_class, RefusalReason.EXPIRED)
        if load is not None and (excess := self._excess(ticket, load, now)) > 0.0:
            raise waiting.refused(work_class, RefusalReason.OVERLOAD, excess)
        displaced = queue.displaced_by(ticket)
        if displaced is None:
            raise waiting.refused(work_class, RefusalReason.QUEUE_FULL)
        for other in displaced:
            waiting.leave(other)
        waiting.enter(ticket, load)
        for other in displaced:
            other.on_refuse(waiting.refusal(work_class, RefusalReason.DISPLACED))
        return None

    def cancel(self, ticket: Ticket) -> None:
        """Take out a ticket whose client left. Nothing happens when it no longer waits."""
        if self._waiting.leave(ticket):
            self._waiting.queue(ticket.request.work_class).cancelled += 1

    def expire(self) -> None:
        """Refuse overdue tickets, and let go what only time has made room for. To be called a few
        times a second; in a large pool the backends take turns at being looked at."""
        self._waiting.drop_overdue(self._clock())
        if not self._waiting:
            return
        backends, count = self.backends, LOOKED_AT
        if len(backends) > count:
            start = self._next_look = (self._next_look + count) % len(backends)
            backends = (*backends[start:], *backends[:start])[:count]
        self._granter.serve(*backends)

    # reading

    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._waiting

    def depth(self, work_class: WorkClass) -> int:
        """How many tickets wait."""
        return len(self._waiting.queue(work_class))

    def oldest_wait(self, work_class: WorkClass) -> float:
        """Seconds that the oldest ticket has waited; 0 when nothing waits."""
        return self._waiting.queue(work_class).oldest_wait(self._clock())

    def granted(self, work_class: WorkClass) -> int:
        """Leases granted so far."""
        return self._waiting.queue(work_class).granted

    def refused(self, work_class: WorkClass) -> Mapping[RefusalReason, int]:
        """Tickets refused so far, by reason."""
        return self._waiting.queue(work_class).refused

    def candidates(self, request: RouteRequest) -> list[BackendLoad]:
        """The backends that the policy could choose among now."""
        return self._placer.candidates(request)

    def takes_answer(self, load: BackendLoad, request: RouteRequest) -> bool:
        """Whether a backend can take a request whose prompt another one computes."""
        return self._placer.takes_answer(load, request)

    def is_full(self, load: BackendLoad) -> bool:
        """Whether a backend gets nothing new because its engine says that its KV cache is full."""
        return self._placer.is_full(load)

    def is_open(self, load: BackendLoad) -> bool:
        """Whether a backend has so little prefill pending that requests are sent to it."""
        return self._placer.is_open(load, self._clock())

    def hold(self, load: BackendLoad, request: RouteRequest) -> Hold | None:
        """Why a request would be held for a backend now; None when it would be sent on."""
        if self.is_full(load):
            return Hold.MEMORY
        seconds = own_prefill_seconds(request, load)
        return self._placer.hold(load, request, seconds, self._clock())

    def held_for(self, load: BackendLoad) -> Hold | None:
        """Why the next in line for a backend is held; None when nobody is in line."""
        now = self._clock()
        turn = self._waiting.lines.next(load, now, self._placer)
        if turn is None or turn.ticket.line is not turn.line:
            return None
        if self.is_full(load):
            return Hold.MEMORY
        return self._placer.hold(load, turn.ticket.request, turn.ticket.seconds, now)

    def snapshot(self) -> PoolSnapshot:
        now = self._clock()
        return PoolSnapshot(
            self.model,
            self.role,
            {load.id: len(self._waiting.lines.of(load)) for load in self.backends},
            len(self._waiting.lines.homeless),
            self._waiting.tenants.waiting,
            {
                queue.work_class: QueueSnapshot(
                    len(queue),
                    queue.usage.tokens,
                    queue.oldest_wait(now),
                    queue.granted,
                    queue.cancelled,
                    dict(queue.refused),
                )
                for queue in self._waiting.queues
            },
        )

    # how it is done

    def _look(self, ticket: Ticket, now: float, open_only: bool) -> BackendLoad | None:
        work_class = ticket.request.work_class
        if self._closed:
            raise self._waiting.refused(work_class, RefusalReason.SHUTTING_DOWN)
        try:
            return self._placer.look(ticket, now, open_only=open_only)
        except RoutingFailed:
            raise self._waiting.refused(work_class, RefusalReason.ROUTING_FAILED) from None

    def _excess(self, ticket: Ticket, load: BackendLoad, now: float) -> float:
        """Seconds by which a newcomer would wait longer than it may, or than its target allows;
        up to 0 when it would not.

        The work that is ahead of it, or how long tickets have waited of late, must agree with the
        pace at which they go: the work is wrong where rates are not known yet or prefills are held
        for streams, waits and pace where traffic has just changed.
        """
        request = ticket.request
        patience = ticket.expires - now
        factor = self.scheduling.shed_factor
        if factor is not None:
            left = factor * (request.deadline - now) - ticket.seconds
            patience = max(0.0, min(patience, left))
        work = load.pending_seconds(now) + self._waiting.lines.of(load).seconds_before(request)
        queue = self._waiting.queue(request.work_class)
        return min(max(work, queue.waits), queue.seconds_before(ticket, now)) - patience
