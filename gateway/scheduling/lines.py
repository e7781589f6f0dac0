"""Where the tickets of a pool stand while they wait."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from gateway.config import Scheduling
from gateway.scheduling.line import Line, Turn, urgency
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.placer import Placer
from gateway.scheduling.tenants import Tenants
from gateway.scheduling.ticket import Ticket
from policies.base import RouteRequest


class Lines:
    """One line for each backend, and one for the tickets that no backend has room for.

    Attributes:
        homeless: the latter.
    """

    __slots__ = ("_by_backend", "_scheduling", "_start", "_tenants", "homeless")

    def __init__(self, tenants: Tenants, scheduling: Scheduling) -> None:
        self.homeless = Line(None)
        self._tenants = tenants
        self._scheduling = scheduling
        self._by_backend: dict[str, Line] = {}
        self._start = 0

    def __contains__(self, backend_id: str) -> bool:
        return backend_id in self._by_backend

    def of(self, load: BackendLoad) -> Line:
        return self._by_backend[load.id]

    def lighter(self, load: BackendLoad, request: RouteRequest) -> float:
        """Seconds of prefill that a request may bring to go past those held for a backend."""
        line = self._by_backend[load.id]
        return line.lighter(request) if line else inf

    def wait_for(self, load: BackendLoad) -> bool:
        """Whether anyone waits that could go to a backend."""
        return bool(self.homeless or self._by_backend[load.id])

    def set_scheduling(self, scheduling: Scheduling) -> None:
        if scheduling.order != self._scheduling.order:
            lines = (*self._by_backend.values(), self.homeless)
            tickets = [(ticket, line) for line in lines for ticket in line]
            for ticket, line in tickets:
                line.remove(ticket)
            for ticket, line in tickets:
                line.push(ticket, scheduling)
        self._scheduling = scheduling

    def set_backends(self, backends: Sequence[BackendLoad]) -> None:
        """Those who wait for a backend that is no longer there wait for any."""
        lines = self._by_backend
        self._by_backend = {}
        for load in backends:
            line = lines.get(load.id)
            if line is not None and line.load is load:
                del lines[load.id]
            else:
                line = Line(load)
                load.join(line)
            self._by_backend[load.id] = line
        for line in lines.values():
            for ticket in tuple(line):
                self.stand(ticket, None)
            if line.load is not None:
                line.load.part(line)

    def stand(self, ticket: Ticket, load: BackendLoad | None) -> None:
        """Put a ticket where it now belongs, wherever it stood."""
        if ticket.line is not None:
            ticket.line.remove(ticket)
        line = self.homeless if load is None else self._by_backend[load.id]
        line.push(ticket, self._scheduling)

    def strike(self, ticket: Ticket) -> None:
        """Let a ticket no longer count as queued where it stands: it must not stand in its own way
        when it is looked at."""
        if ticket.line is not None:
            ticket.line.strike(ticket)

    def next(self, load: BackendLoad, now: float, placer: Placer) -> Turn | None:
        """Who goes next to a backend, of its own line and of those who wait for any."""
        others = {
            kind: lanes
            for kind, lanes in self.homeless.lanes.items()
            if placer.has_slot(load, kind[1])
        }
        line = self._by_backend[load.id]
        return line.next(now, self._scheduling, self._tenants, others)

    def most_urgent(self, now: float, count: int) -> list[Turn]:
        """Of up to `count` lines those whose turn it is, the most urgent first; then others of
        these lines. Where there are more lines, they take turns."""
        lines = [line for line in self._by_backend.values() if line]
        if len(lines) > count:
            start = self._start = (self._start + count) % len(lines)
            lines = [*lines[start:], *lines[:start]][:count]
        heads = []
        for line in lines:
            turn = line.next(now, self._scheduling, self._tenants)
            if turn is not None:
                heads.append(turn)
        heads.sort(key=_urgency)
        first = {turn.ticket for turn in heads}
        behind = [turn for line in lines for turn in line.first(count) if turn.ticket not in first]
        behind.sort(key=_urgency)
        return heads + behind


def _urgency(turn: Turn) -> tuple[int, float, int]:
    return urgency(turn.ticket)
