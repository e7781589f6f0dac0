"""What waits for one backend, in the order in which it should go."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from itertools import islice
from math import inf

from gateway.config import Scheduling
from gateway.scheduling.lane import Lane
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.tenants import Tenants
from gateway.scheduling.ticket import RANKS, Ticket
from gateway.scheduling.turns import Turns
from gateway.types import Priority, WorkClass
from policies.base import RouteRequest

TENANTS_ASKED = 64
"""Tenants of a kind that are held against each other at a time: a turn takes the longer the more
there are."""
PASSING = 0.25
"""A ticket goes past one that is held for the streams' sake if it brings at most this share of the
other's prefill."""
LEAST_SHARE = 1.0
"""Seconds of another tenant's prefill that may go before a newcomer in any case."""

_CLASSES = (WorkClass.DECODE, WorkClass.PREFILL)

Kind = tuple[Priority, WorkClass]
Lanes = Mapping[str, Lane]
"""By tenant."""


@dataclass(slots=True, frozen=True)
class Turn:
    """Who goes next in a line, and over whom: what is to be counted when it does go.

    Attributes:
        priorities: those that wait.
        classes: those that wait of its priority.
    """

    ticket: Ticket
    line: Line
    priorities: tuple[Priority, ...]
    classes: tuple[WorkClass, ...]


class Line:
    """The tickets that a pool holds for one backend, or those that no backend has room for.

    Who goes first: by priority, then by tenant, then by class (priorities and classes that come
    later have a reserved share), then in the lane's order. Those that have to wait for more than
    their turn are passed over; see `Granter`.

    Bound: a priority that waits gets at least its share of the line's releases, and of those the
    prefill class at least its share wherever the tenants whose turn it is have both classes
    waiting. Up to `TENANTS_ASKED` tenants are held against each other at a time; with more of them
    each comes among those that are asked once the others have had a turn.

    Args:
        load: the backend's ledger, on which the held work is entered; None when the tickets wait
            for any.

    Attributes:
        lanes: by kind and tenant; none of them empty.
    """

    __slots__ = (
        *("_by_class", "_by_priority", "_count", "_held_rank", "_lighter", "_seconds"),
        *("lanes", "load"),
    )

    def __init__(self, load: BackendLoad | None) -> None:
        self.load = load
        self.lanes: dict[Kind, dict[str, Lane]] = {}
        self._seconds: dict[Kind, float] = {}
        self._count = 0
        self._by_priority = Turns(tuple(Priority))
        self._by_class = {priority: Turns(_CLASSES) for priority in Priority}
        self.hold_none()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Ticket]:
        for lanes in self.lanes.values():
            for lane in lanes.values():
                yield from lane

    def push(self, ticket: Ticket, settings: Scheduling) -> None:
        request = ticket.request
        kind = (request.priority, request.work_class)
        lanes = self.lanes.setdefault(kind, {})
        self._seconds.setdefault(kind, 0.0)
        lane = lanes.get(request.tenant)
        if lane is None:
            lane = lanes[request.tenant] = Lane(settings.order)
        lane.push(ticket)
        ticket.line, ticket.lane = self, lane
        self._count += 1
        self.hold(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Take out a ticket that is in here."""
        self.strike(ticket)
        lane = ticket.lane
        assert lane is not None
        lane.remove(ticket)
        ticket.line = ticket.lane = None
        self._count -= 1
        if not lane:
            request = ticket.request
            lanes = self.lanes[request.priority, request.work_class]
            del lanes[request.tenant]
            if not lanes:
                del self.lanes[request.priority, request.work_class]
                del self._seconds[request.priority, request.work_class]

    def hold(self, ticket: Ticket) -> None:
        """Enter the prefill of a ticket in here as queued."""
        if self.load is not None:
            self._enter(ticket, ticket.seconds)

    def strike(self, ticket: Ticket) -> None:
        """Let a ticket's prefill no longer count as queued."""
        if ticket.held:
            self._enter(ticket, -ticket.held)

    def _enter(self, ticket: Ticket, seconds: float) -> None:
        assert ticket.lane is not None
        ticket.lane.seconds += seconds
        request = ticket.request
        self._seconds[request.priority, request.work_class] += seconds
        ticket.held += seconds

    def hold_none(self) -> None:
        """Let nobody be held for the streams' sake, until the next is."""
        self._lighter = inf
        self._held_rank = len(RANKS)

    def hold_back(self, ticket: Ticket) -> None:
        """Let only others go past a ticket whose turn it was."""
        self._lighter = min(self._lighter, PASSING * ticket.seconds)
        self._held_rank = min(self._held_rank, RANKS[ticket.request.priority])

    def lighter(self, request: RouteRequest) -> float:
        """Seconds of prefill that a request may bring to go past those that are held.

        Nothing, if it ranks below one of them: what takes a little each time takes all if there is
        enough of it.
        """
        return self._lighter if RANKS[request.priority] <= self._held_rank else 0.0

    def next(
        self,
        now: float,
        settings: Scheduling,
        tenants: Tenants,
        others: Mapping[Kind, Lanes] | None = None,
    ) -> Turn | None:
        """Who goes next.

        Args:
            others: lanes of tickets that wait for any backend, and so in this line too.
        """
        groups: dict[Priority, dict[WorkClass, list[Lanes]]] = {}
        for lanes_by_kind in (self.lanes, others) if others else (self.lanes,):
            for (priority, work_class), lanes in lanes_by_kind.items():
                groups.setdefault(priority, {}).setdefault(work_class, []).append(lanes)
        if not groups:
            return None
        priority = self._by_priority.first(groups, _priority_shares(settings))
        classes = groups[priority]
        waiting = {
            tenant
            for some in classes.values()
            for lanes in some
            for tenant in islice(lanes, TENANTS_ASKED)
        }
        if len(waiting) > 1:
            waiting = set(tenants.eligible(waiting))
            classes = {
                work_class: some
                for work_class, some in classes.items()
                if any(not waiting.isdisjoint(lanes) for lanes in some)
            }
        work_class = self._by_class[priority].first(classes, _class_shares(settings))
        heads = _heads(classes[work_class], waiting, now)
        ticket = min(heads, key=_key)
        return Turn(ticket, self, tuple(groups), tuple(classes))

    def first(self, count: int) -> list[Turn]:
        """Some of those that wait, roughly in the order of their lanes; to go elsewhere."""
        return [self.out_of_turn(ticket) for ticket in islice(self, count)]

    def out_of_turn(self, ticket: Ticket) -> Turn:
        """A turn that is taken from nobody."""
        return Turn(ticket, self, (ticket.request.priority,), (ticket.request.work_class,))

    def count(self, turn: Turn, settings: Scheduling) -> None:
        """Count a turn whose ticket goes."""
        request = turn.ticket.request
        priority, work_class = request.priority, request.work_class
        self._by_priority.released(priority, turn.priorities, _priority_shares(settings))
        self._by_class[priority].released(work_class, turn.classes, _class_shares(settings))
        line = turn.ticket.line
        assert line is not None
        lanes = line.lanes[priority, work_class]
        if len(lanes) > TENANTS_ASKED:
            # It has had its turn: others are asked before it comes again.
            lanes[request.tenant] = lanes.pop(request.tenant)

    def seconds_before(self, request: RouteRequest) -> float:
        """Prefill held here that a request has to wait for: what ranks higher, what its own tenant
        has that is due before it, and of each other tenant as much as that."""
        rank, tenant = RANKS[request.priority], request.tenant
        own, others, total = 0.0, 0.0, 0.0
        for (priority, work_class), lanes in self.lanes.items():
            if RANKS[priority] < rank:
                total += self._seconds[priority, work_class]
            elif priority is request.priority:
                lane = lanes.get(tenant)
                if lane is not None and work_class is request.work_class:
                    own += lane.seconds_before(request)
                elif lane is not None and work_class is WorkClass.DECODE:
                    own += lane.seconds
        share = max(own, LEAST_SHARE)
        for kind, lanes in self.lanes.items():
            if kind[0] is request.priority:
                lane = lanes.get(tenant)
                theirs = self._seconds[kind] - (lane.seconds if lane is not None else 0.0)
                others += min(theirs, share * (len(lanes) - (lane is not None)))
        return total + own + others


def _priority_shares(settings: Scheduling) -> dict[Priority, float]:
    shares = settings.priorities
    return {Priority.NORMAL: shares.normal, Priority.LOW: shares.low}


def _class_shares(settings: Scheduling) -> dict[WorkClass, float]:
    return {WorkClass.PREFILL: settings.prefill_share}


def urgency(ticket: Ticket) -> tuple[int, float, int]:
    """The lower is the more urgent, across lines."""
    return RANKS[ticket.request.priority], *_key(ticket)


def _heads(groups: Iterable[Lanes], tenants: Set[str], now: float) -> Iterator[Ticket]:
    """Of some tenants, who goes first in each lane."""
    for lanes in groups:
        for tenant in tenants:
            lane = lanes.get(tenant)
            if lane is not None and (ticket := lane.first(now)) is not None:
                yield ticket


def _key(ticket: Ticket) -> tuple[float, int]:
    assert ticket.lane is not None
    return ticket.lane.key(ticket), ticket.number
