"""Where a ticket goes: limits, gate and policy in one look."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import inf

from gateway.config import ClassLimits, Scheduling
from gateway.scheduling.hold import Hold
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.room import has_room_for_answer, share_range, with_room
from gateway.scheduling.streams import OutputLengths
from gateway.scheduling.ticket import Ticket
from gateway.types import Decision, WorkClass
from policies.base import Policy, RouteRequest
from policies.cost import own_prefill_seconds

logger = logging.getLogger("prefixgate.scheduling")


LONGEST_HOLD = 3.0
"""How long a prefill waits for streams at most, in times of its target. The few longest prompts of
an overloaded pool reach it; one of them stalls a backend for half a minute."""


def _held_until(ticket: Ticket) -> float:
    """When it goes whatever it does to the streams: late, but not for ever, nor so late that it
    could be refused first."""
    longest = ticket.arrived + LONGEST_HOLD * (ticket.request.deadline - ticket.arrived)
    return min(longest, _half_time(ticket))


def _half_time(ticket: Ticket) -> float:
    """When half of the time is over that a ticket may wait."""
    return 0.5 * (ticket.arrived + ticket.expires)


Screen = Callable[[RouteRequest, list[BackendLoad]], list[BackendLoad]]
"""Of the backends with room for a request, those that it can begin at."""


class RoutingFailed(Exception):
    """The policy raised, or chose what was no candidate."""


class Placer:
    """Chooses among the backends of a pool, and knows which of them are kept for whom.

    Room. A ticket that a backend has no room for, under its limits or in its memory, may be so
    large that what comes after it always fits first. Once it is past its deadline, or for memory
    once half of the time is over that it may wait, it reserves a backend: nothing goes there before
    it that counts against the limit that it waits for, or that would take the memory that it needs,
    whatever its class and priority. It may still go elsewhere, but waits for nothing else. Bound:
    it goes at the latest when what was in flight there has ended, as long as no other pool sends
    there. A backend is kept for one ticket at a time.

    Streams. A prefill is held where it would make too many of them miss their pace. Bound: this
    ends after `LONGEST_HOLD` times its target, or when half of the time that it may wait is over,
    whichever comes first.

    Trials. A backend that is not trusted takes no more requests than it has permits, whatever room
    it has; with one to give, it comes before all others, because no policy can be relied on to
    choose it. A request that has failed elsewhere already is put to it last.
    """

    __slots__ = (
        "_by_id",
        "_on_trial",
        "_reserved",
        "_scheduling",
        "backends",
        "lengths",
        "policy",
        "screen",
    )

    def __init__(self, policy: Policy, scheduling: Scheduling) -> None:
        self.policy = policy
        self.screen: Screen | None = None
        self.lengths = OutputLengths()
        self._scheduling = scheduling
        self.backends: tuple[BackendLoad, ...] = ()
        self._by_id: dict[str, BackendLoad] = {}
        self._on_trial = False
        self._reserved: dict[str, Ticket] = {}

    @property
    def scheduling(self) -> Scheduling:
        return self._scheduling

    @scheduling.setter
    def scheduling(self, scheduling: Scheduling) -> None:
        self._scheduling = scheduling
        self._set_pace()

    def set_backends(self, backends: Sequence[BackendLoad]) -> None:
        self.backends = tuple(backends)
        self._on_trial = any(load.trials is not None for load in backends)
        self._set_pace()
        self._by_id = {load.id: load for load in backends}
        for id in self._reserved.keys() - self._by_id.keys():
            self._reserved.pop(id).reserved = None

    def _set_pace(self) -> None:
        for load in self.backends:
            load.pace = self._scheduling.pace

    def limits(self, work_class: WorkClass) -> ClassLimits:
        scheduling = self._scheduling
        return scheduling.prefill if work_class is WorkClass.PREFILL else scheduling.decode

    def is_open(self, load: BackendLoad, now: float) -> bool:
        """Whether a backend has so little prefill pending that requests are sent to it."""
        gate = self._scheduling.gate
        return gate is None or load.pending_seconds(now) < gate

    def may_go(
        self, ticket: Ticket, load: BackendLoad, now: float, *, lighter: float = inf
    ) -> bool:
        """Whether a ticket is sent to a backend now: its gate is open, its memory has room, and the
        streams there can bear the ticket's prefill, or it has waited long enough for them.

        Args:
            lighter: seconds of prefill that it may bring at most. Where somebody whose turn came
                first is held for the streams' sake, only much lighter ones may go past, and their
                wait does not count: else whoever has waited longest would go first, whatever its
                priority and tenant.
        """
        hold = self.hold(load, ticket.request, ticket.seconds, now)
        if hold is Hold.STREAMS:
            return lighter == inf and now >= _held_until(ticket)
        return hold is None and (ticket.seconds <= lighter or not load.streams)

    def hold(
        self, load: BackendLoad, request: RouteRequest, seconds: float, now: float
    ) -> Hold | None:
        """Why a request would be held for a backend; None when it would not.

        Args:
            seconds: of prefill that it brings there.
        """
        scheduling = self._scheduling
        gate = scheduling.gate
        if gate is None:
            return None
        if load.pending_seconds(now) >= gate:
            return Hold.GATE
        if not load.fits_memory(request):
            return Hold.MEMORY
        if scheduling.pace is None or not load.streams:
            return None
        spoilt = load.spoilt_streams(now, seconds)
        return Hold.STREAMS if spoilt > scheduling.pace_tolerance else None

    def takes(self, load: BackendLoad, request: RouteRequest, now: float) -> bool:
        """Whether a backend's gate is open and its memory has room."""
        return self._scheduling.gate is None or (
            self.is_open(load, now) and load.fits_memory(request)
        )

    def has_slot(self, load: BackendLoad, work_class: WorkClass) -> bool:
        return load.of(work_class).has_slot(self.limits(work_class).max_requests)

    def candidates(self, request: RouteRequest) -> list[BackendLoad]:
        """The backends with room under the limits."""
        roomy = self._roomy(self.backends, request)
        if self._on_trial:
            roomy = [load for load in roomy if load.has_permit]
        most = self._scheduling.max_kv_use
        if most is None:
            return roomy
        return [load for load in roomy if load.others.excess is None or not load.is_full(most)]

    def takes_answer(self, load: BackendLoad, request: RouteRequest) -> bool:
        """Whether a backend can take a request whose prompt another one computes."""
        scheduling = self._scheduling
        return (
            load.has_permit
            and not self.is_full(load)
            and has_room_for_answer(
                load, scheduling.decode, scheduling.ranges, request.prompt_tokens
            )
        )

    def _roomy(self, backends: Sequence[BackendLoad], request: RouteRequest) -> list[BackendLoad]:
        limits, ranges = self.limits(request.work_class), self._scheduling.ranges
        roomy = with_room(backends, limits, ranges, request)
        return roomy if self.screen is None else self.screen(request, roomy)

    def is_overdue(self, ticket: Ticket, load: BackendLoad, now: float) -> bool:
        """Whether a ticket has waited so long for room at a backend that it is kept for it."""
        request = ticket.request
        if request.deadline < now and not self.fits(load, ticket):
            return True
        # Memory that is kept lies idle while it comes free, so this begins late.
        return now >= _half_time(ticket) and not load.fits_memory(request)

    def fits(self, load: BackendLoad, ticket: Ticket) -> bool:
        """Whether one backend has room for a ticket, and is not kept for another."""
        request = ticket.request
        if self.is_full(load):
            return False
        return bool(self._roomy((load,), request)) and self._may_use(ticket, load)

    def is_full(self, load: BackendLoad) -> bool:
        """Whether a backend gets nothing new because of what its engine says of its KV cache."""
        most = self._scheduling.max_kv_use
        return most is not None and load.is_full(most)

    def look(self, ticket: Ticket, now: float, *, open_only: bool = False) -> BackendLoad | None:
        """Where a ticket goes as of now, with its decision and prefill as there; None when no
        backend has room for it.

        Args:
            open_only: backends that it would have to wait for are no candidates.

        Raises:
            RoutingFailed: the policy is broken.
        """
        request = ticket.request
        roomy = self.candidates(request)
        if ticket.avoid or ticket.only is not None or self._reserved:
            roomy = [load for load in roomy if self._may_use(ticket, load)]
        if open_only or ticket.reserved is not None:
            # It waits for nothing but what is kept for it.
            kept = ticket.reserved
            roomy = [load for load in roomy if load.id == kept or self.takes(load, request, now)]
        if not roomy:
            return None
        if self._on_trial:
            failed = bool(ticket.avoid)
            roomy = [load for load in roomy if (load.trials is None) is failed] or roomy
        load = None
        if ticket.decision is not None and not self.policy.late_binding:
            load = self._chosen(ticket.decision, roomy)
        if load is None:
            ticket.decision, load = self._choose(request, roomy)
        ticket.seconds = own_prefill_seconds(request, load)
        return load

    def placed(self, request: RouteRequest, load: BackendLoad) -> None:
        """Tell the policy where a request went.

        Raises:
            RoutingFailed: the policy is broken.
        """
        try:
            self.policy.placed(request, load)
        except Exception:
            raise self._failed(request) from None

    def reserve(self, load: BackendLoad, ticket: Ticket) -> None:
        """Keep a backend for a ticket, unless it is kept already, or the ticket has another or must
        not go there."""
        id = load.id
        if ticket.reserved is None and id not in self._reserved and ticket.allows(id):
            self._reserved[id] = ticket
            ticket.reserved = id

    def holder(self, load: BackendLoad) -> Ticket | None:
        """Whom a backend is kept for."""
        return self._reserved.get(load.id)

    def release(self, ticket: Ticket) -> None:
        """Give up a ticket's reservation, if it has one."""
        if ticket.reserved is not None:
            del self._reserved[ticket.reserved]
            ticket.reserved = None

    def _may_use(self, ticket: Ticket, load: BackendLoad) -> bool:
        if not ticket.allows(load.id) or not load.has_permit:
            return False
        holder = self._reserved.get(load.id)
        if holder is None or holder is ticket:
            return True
        request, other = holder.request, ticket.request
        if self._scheduling.gate is not None and not load.fits_memory(request, after=other):
            return False
        if share_range(request, other, self._scheduling.ranges):
            return False
        if request.work_class is not other.work_class:
            return True
        # Whether it waits for the budget of its class, or for a range alone.
        return bool(with_room((load,), self.limits(request.work_class), (), request))

    def _choose(
        self, request: RouteRequest, candidates: list[BackendLoad]
    ) -> tuple[Decision, BackendLoad]:
        # Third parties write policies, and they may run inside another request's release.
        try:
            decision = self.policy.choose(request, candidates)
            load = self._chosen(decision, candidates)
            if load is None:
                raise LookupError(f"{decision.backend!r} is not a candidate")
        except Exception:
            raise self._failed(request) from None
        return decision, load

    def _chosen(self, decision: Decision, candidates: list[BackendLoad]) -> BackendLoad | None:
        load = self._by_id.get(decision.backend)
        return load if load in candidates else None

    def _failed(self, request: RouteRequest) -> RoutingFailed:
        name = self.policy.name
        logger.exception("policy %s failed on a request for %r", name, request.model)
        return RoutingFailed(name)
