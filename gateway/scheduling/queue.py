"""The tickets of one class that wait in one pool."""

from __future__ import annotations

from collections import OrderedDict
from math import inf

from gateway.config import ClassLimits
from gateway.scheduling.ticket import RefusalReason, Ticket
from gateway.types import WorkClass

_NEWEST_GAP = 1 / 16
"""Weight of the newest gap between grants in their mean."""


class ClassQueue:
    """First come, first served, with the counters and the pace of its class.

    Attributes:
        tickets: those that wait, in order; others only read it.
        limits: swapped when settings change; tickets that wait keep the deadline they were given.
        granted: leases granted, waited for or not.
        cancelled: tickets that left while they waited.
        refused: by reason.
    """

    __slots__ = (
        "_gap",
        "_last_grant",
        "_next_deadline",
        "cancelled",
        "granted",
        "limits",
        "refused",
        "tickets",
        "work_class",
    )

    def __init__(self, work_class: WorkClass, limits: ClassLimits) -> None:
        self.work_class = work_class
        self.limits = limits
        self.granted = 0
        self.cancelled = 0
        self.refused = dict.fromkeys(RefusalReason, 0)
        # Ordered, because taking the head of a plain dict slows down with what was taken before.
        self.tickets: OrderedDict[Ticket, None] = OrderedDict()
        self._next_deadline = inf
        self._gap: float | None = None
        self._last_grant = 0.0

    def __len__(self) -> int:
        return len(self.tickets)

    def is_full(self) -> bool:
        return len(self.tickets) >= self.limits.max_waiting

    def head(self) -> Ticket:
        """The ticket whose turn it is; the queue must not be empty."""
        return next(iter(self.tickets))

    def push(self, ticket: Ticket) -> None:
        if not self.tickets:
            self._last_grant = ticket.submitted
        self.tickets[ticket] = None
        self._next_deadline = min(self._next_deadline, ticket.deadline)

    def remove(self, ticket: Ticket) -> bool:
        """Whether the ticket was waiting."""
        if ticket not in self.tickets:
            return False
        del self.tickets[ticket]
        return True

    def pop_all(self) -> list[Ticket]:
        tickets = list(self.tickets)
        self.tickets.clear()
        self._next_deadline = inf
        return tickets

    def pop_overdue(self, now: float) -> list[Ticket]:
        if now < self._next_deadline:
            return []
        overdue = [ticket for ticket in self.tickets if ticket.deadline <= now]
        for ticket in overdue:
            del self.tickets[ticket]
        self._next_deadline = min((ticket.deadline for ticket in self.tickets), default=inf)
        return overdue

    def oldest_wait(self, now: float) -> float:
        """Seconds that the head has waited; 0 when nothing waits."""
        return now - self.head().submitted if self.tickets else 0.0

    def note_pace(self, now: float) -> None:
        """A ticket that waited is granted now."""
        gap = now - self._last_grant
        self._last_grant = now
        self._gap = gap if self._gap is None else self._gap + _NEWEST_GAP * (gap - self._gap)

    def drain_seconds(self, now: float) -> float:
        """Estimate of when everything that waits now will have left the queue."""
        # At the latest then the last of them is granted or expires.
        latest = self.limits.max_wait
        if self._gap is None:
            return latest
        stalled = max(0.0, now - self._last_grant - self._gap) if self.tickets else 0.0
        return min(latest, len(self.tickets) * (self._gap + _NEWEST_GAP * stalled))
