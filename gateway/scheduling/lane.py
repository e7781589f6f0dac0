"""Tickets of one kind in the order in which they go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gateway.scheduling.heap import TicketHeap
from gateway.scheduling.ticket import Ticket
from policies.base import RouteRequest

Order = Literal["deadline", "arrival", "work"]

SECOND_DEADLINE = 8.0
"""How many times as far from its arrival as the first deadline a ticket's second one is."""
AGING = 0.1
"""Work in seconds that each second of waiting makes up for, in the order by work: nothing waits
longer than ten times its work behind newer tickets."""


class Lane:
    """By deadline, unless the settings say otherwise. A ticket that can no longer make its deadline
    when it reaches the head gets a second one, later by a factor: kept at the head it would only
    make those behind it late too, and moved to the end it would never go while work keeps coming.

    Bound, in the order by deadline: what comes after a ticket's second deadline goes behind it.

    Attributes:
        seconds: prefill of those that wait, as far as it is entered as queued somewhere.
    """

    __slots__ = ("_order", "_tickets", "seconds")

    def __init__(self, order: Order) -> None:
        self.seconds = 0.0
        self._order: Order = order
        self._tickets = TicketHeap()

    def __len__(self) -> int:
        return len(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(self._tickets)

    def push(self, ticket: Ticket) -> None:
        self._tickets.push(ticket, self.key(ticket))

    def remove(self, ticket: Ticket) -> None:
        self._tickets.remove(ticket)

    def first(self, now: float) -> Ticket | None:
        """Who goes first."""
        while (ticket := self._tickets.first()) is not None:
            if self._order != "deadline" or ticket.late or not is_late(ticket, now):
                return ticket
            ticket.late = True
            self._tickets.push(ticket, self.key(ticket))
        return None

    def seconds_before(self, request: RouteRequest) -> float:
        """Prefill of those that go before a newcomer; in the order by work, of all. One that is
        late is still asked for by its first deadline: to count what goes before its second one
        was tried, and only made the late give up what is cached."""
        if self._order != "deadline":
            return self.seconds
        return sum(ticket.held for ticket in self._tickets.up_to(request.deadline))

    def key(self, ticket: Ticket) -> float:
        """The lower goes first."""
        match self._order:
            case "deadline":
                return due(ticket)
            case "arrival":
                return ticket.arrived
            case "work":
                # Waiting shrinks all keys alike, so the arrival stands for it.
                return ticket.seconds + AGING * ticket.arrived


def is_late(ticket: Ticket, now: float) -> bool:
    """Whether its deadline is missed even when it goes now."""
    return ticket.request.deadline - now < ticket.seconds


def due(ticket: Ticket) -> float:
    """Its deadline, or its second one."""
    return second_deadline(ticket) if ticket.late else ticket.request.deadline


def second_deadline(ticket: Ticket) -> float:
    return ticket.arrived + SECOND_DEADLINE * (ticket.request.deadline - ticket.arrived)
