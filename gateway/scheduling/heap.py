"""Waiting tickets by a key."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from gateway.scheduling.ticket import Ticket

_Entry = tuple[float, int, Ticket]

_FEW = 16


class TicketHeap:
    """The lowest key goes first, and of equal ones who came first.

    Tickets leave from anywhere without being looked for: what is left of them is skipped later.
    """

    __slots__ = ("_entries", "_heap")

    def __init__(self) -> None:
        self._entries: dict[Ticket, _Entry] = {}
        self._heap: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Ticket]:
        """Roughly in order; the first is the first."""
        entries = self._entries
        return (entry[2] for entry in self._heap if entries.get(entry[2]) is entry)

    def up_to(self, key: float) -> Iterator[Ticket]:
        """Those whose key is not higher, in no order."""
        entries = self._entries
        for entry in self._heap:
            if entry[0] <= key and entries.get(entry[2]) is entry:
                yield entry[2]

    def push(self, ticket: Ticket, key: float) -> None:
        """Put in a ticket, or give one that is in here another key."""
        entry = self._entries[ticket] = (key, ticket.number, ticket)
        heappush(self._heap, entry)

    def remove(self, ticket: Ticket) -> bool:
        """Whether it was in here."""
        if self._entries.pop(ticket, None) is None:
            return False
        # Where nobody asks for the first, what is left behind would pile up.
        if len(self._heap) > _FEW + 2 * len(self._entries):
            self._heap = list(self._entries.values())
            heapify(self._heap)
        return True

    def first(self) -> Ticket | None:
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[2]) is entry:
                return entry[2]
            heappop(heap)
        return None
