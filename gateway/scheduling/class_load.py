"""The parts of a backend's ledger that limits are held against."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.scheduling.allotment import Allotment


class ClassLoad:
    """One class's share of a backend's ledger: what the limits of the class are held against.

    Attributes:
        in_flight: requests dispatched and not yet finished.
        elsewhere: of those, the ones that other replicas sent.
        pending: of those, the ones before their first token.
        uncached_tokens: uncached prompt tokens of the pending ones.
        allotment: this replica's part of the limit; None where it has all of it.
    """

    __slots__ = ("allotment", "elsewhere", "in_flight", "pending", "uncached_tokens")

    def __init__(self) -> None:
        self.in_flight = 0
        self.elsewhere = 0
        self.allotment: Allotment | None = None
        self.pending = 0
        self.uncached_tokens = 0

    @property
    def own(self) -> int:
        """Of the requests in flight, those that this replica sent."""
        return self.in_flight - self.elsewhere

    def has_slot(self, max_requests: int) -> bool:
        """Whether the limit has room for one more."""
        # The allotment is asked first: what all slots are taken for elsewhere is wanted here too.
        allotment = self.allotment
        if allotment is not None and not allotment.takes(self.own):
            return False
        return self.in_flight < max_requests


class RangeLoad:
    """Requests in flight whose prompts have at least some length."""

    __slots__ = ("requests", "tokens")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0

    def add(self, requests: int, tokens: int) -> None:
        self.requests += requests
        self.tokens += tokens
