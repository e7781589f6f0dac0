"""All tickets of one class that wait in one pool, wherever in it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from gateway.config import ClassLimits
from gateway.scheduling.heap import TicketHeap
from gateway.scheduling.ticket import RANKS, RefusalReason, Ticket
from gateway.types import Priority, WorkClass

_NEWEST_GAP = 1 / 16
"""Weight of the newest gap between grants in their mean."""

MAX_DISPLACED = 16
"""Tickets that one newcomer displaces at most: what needs the places of more is too large."""


class Usage:
    """What some tickets take up of a queue's bounds."""

    __slots__ = ("requests", "size", "tokens")

    def __init__(self, requests: int = 0, tokens: int = 0, size: int = 0) -> None:
        self.requests = requests
        self.tokens = tokens
        self.size = size

    def with_(self, ticket: Ticket) -> Usage:
        return Usage(
            self.requests + 1,
            self.tokens + ticket.request.prompt_tokens,
            self.size + ticket.size,
        )

    def without(self, ticket: Ticket) -> Usage:
        return Usage(
            self.requests - 1,
            self.tokens - ticket.request.prompt_tokens,
            self.size - ticket.size,
        )

    def share(self, limits: ClassLimits) -> float:
        """Of the bound that it takes up most of."""
        return max(
            self.requests / (limits.max_waiting or 1),
            self.tokens / limits.max_waiting_tokens,
            self.size / limits.max_waiting_bytes,
        )

    def fits(self, limits: ClassLimits) -> bool:
        """One that is larger than a whole bound does when it is alone."""
        if self.requests <= 1:
            return self.requests <= limits.max_waiting
        return self.share(limits) <= 1.0


class _Group:
    """What waits of one tenant in one priority, by arrival."""

    __slots__ = ("tickets", "usage")

    def __init__(self) -> None:
        self.tickets: OrderedDict[Ticket, None] = OrderedDict()
        self.usage = Usage()


class ClassQueue:
    """Who waits, how long, how much; with the counters and the pace of the class. The order in
    which they go is the lines' business.

    Attributes:
        usage: of all that wait.
        waits: seconds that those granted of late had waited, those that went at once left out.
        limits: swapped when settings change; tickets that wait keep the deadline they were given.
        granted: leases granted, waited for or not.
        cancelled: tickets that left while they waited.
        refused: by reason.
    """

    __slots__ = (
        "_by_expiry",
        "_gap",
        "_groups",
        "_last_grant",
        "_tickets",
        "cancelled",
        "granted",
        "limits",
        "refused",
        "usage",
        "waits",
        "work_class",
    )

    def __init__(self, work_class: WorkClass, limits: ClassLimits) -> None:
        self.work_class = work_class
        self.limits = limits
        self.granted = 0
        self.cancelled = 0
        self.refused = dict.fromkeys(RefusalReason, 0)
        self.usage = Usage()
        self.waits = 0.0
        # Ordered ones, because taking the head of a plain dict slows down with what was taken
        # before.
        self._tickets: OrderedDict[Ticket, None] = OrderedDict()
        self._groups: dict[tuple[Priority, str], _Group] = {}
        self._by_expiry = TicketHeap()
        self._gap: float | None = None
        self._last_grant = 0.0

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        """By arrival."""
        return iter(self._tickets)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._tickets

    def push(self, ticket: Ticket) -> None:
        if not self._tickets:
            self._last_grant = ticket.arrived
        self._tickets[ticket] = None
        self._by_expiry.push(ticket, ticket.expires)
        self.usage = self.usage.with_(ticket)
        group = self._groups.setdefault(_key(ticket), _Group())
        group.tickets[ticket] = None
        group.usage = group.usage.with_(ticket)

    def remove(self, ticket: Ticket) -> bool:
        """Whether the ticket was waiting."""
        if ticket not in self._tickets:
            return False
        del self._tickets[ticket]
        self._by_expiry.remove(ticket)
        self.usage = self.usage.without(ticket)
        key = _key(ticket)
        group = self._groups[key]
        del group.tickets[ticket]
        group.usage = group.usage.without(ticket)
        if not group.tickets:
            del self._groups[key]
        return True

    def overdue(self, now: float) -> Iterator[Ticket]:
        """Those that have waited as long as they may, by when that was; each leaves before the
        next is asked for."""
        while (ticket := self._by_expiry.first()) is not None and ticket.expires <= now:
            yield ticket

    def displaced_by(self, newcomer: Ticket) -> list[Ticket] | None:
        """Who has to leave for a newcomer to find a place.

        Lower priorities first; then, of its own, tenants that take up more of the queue than the
        newcomer's would; of each the one with the most, and its latest ticket.

        Returns:
            None when they would not make place enough, or there would be too many of them.
        """
        limits = self.limits
        left = self.usage.with_(newcomer)
        if left.fits(limits):
            return []
        rank = RANKS[newcomer.request.priority]
        own = self._groups.get(_key(newcomer), _Group()).usage.with_(newcomer).share(limits)
        usages, latest = {}, {}
        for key, group in self._groups.items():
            if RANKS[key[0]] >= rank:
                usages[key], latest[key] = group.usage, reversed(group.tickets)
        displaced: list[Ticket] = []
        while usages and len(displaced) < MAX_DISPLACED:
            _, share, key = max((RANKS[key[0]], usages[key].share(limits), key) for key in usages)
            if RANKS[key[0]] == rank and share <= own:
                return None
            ticket = next(latest[key])
            displaced.append(ticket)
            left = left.without(ticket)
            if left.fits(limits):
                return displaced
            usages[key] = usages[key].without(ticket)
            if not usages[key].requests:
                del usages[key]
        return None

    def oldest_wait(self, now: float) -> float:
        """Seconds; 0 when nothing waits."""
        return now - next(iter(self._tickets)).arrived if self._tickets else 0.0

    # pace

    def note_pace(self, now: float, waited: float = 0.0) -> None:
        """A ticket that waited is granted now."""
        self.waits += _NEWEST_GAP * (waited - self.waits)
        gap = now - self._last_grant
        self._last_grant = now
        self._gap = gap if self._gap is None else self._gap + _NEWEST_GAP * (gap - self._gap)

    def drain_seconds(self, now: float) -> float:
        """Estimate of when everything that waits now will have left the queue."""
        # At the latest then the last of them is granted or expires.
        latest = self.limits.max_wait
        return latest if self._gap is None else min(latest, self._pace_seconds(len(self), now))

    def seconds_before(self, ticket: Ticket, now: float) -> float:
        """How long a newcomer would wait, at the pace of late, for those that go before it: higher
        priorities, its own tenant's, and of each other tenant as many as that. 0 while no pace is
        known."""
        rank = RANKS[ticket.request.priority]
        own = self._groups.get(_key(ticket))
        share = 1 + (len(own.tickets) if own is not None else 0)
        ahead = 0
        for (priority, _), group in self._groups.items():
            if RANKS[priority] < rank:
                ahead += len(group.tickets)
            elif RANKS[priority] == rank:
                ahead += len(group.tickets) if group is own else min(len(group.tickets), share)
        return self._pace_seconds(ahead, now)

    def _pace_seconds(self, tickets: int, now: float) -> float:
        if self._gap is None:
            return 0.0
        stalled = max(0.0, now - self._last_grant - self._gap) if self._tickets else 0.0
        return tickets * (self._gap + _NEWEST_GAP * stalled)


def _key(ticket: Ticket) -> tuple[Priority, str]:
    return ticket.request.priority, ticket.request.tenant
