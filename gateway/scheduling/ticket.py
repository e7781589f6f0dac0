"""A request that asks for a lease, and the answer when it gets none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING

import msgspec

from gateway.scheduling.lease import Lease
from gateway.types import Chain, Decision, Match, Priority
from policies.base import RouteRequest

if TYPE_CHECKING:
    from gateway.scheduling.lane import Lane
    from gateway.scheduling.line import Line


class RefusalReason(StrEnum):
    """Why a ticket got no lease; also a metric label, so the set is closed."""

    QUEUE_FULL = "queue_full"
    EXPIRED = "expired"
    """It waited as long as it may."""
    OVERLOAD = "overload"
    """On arrival it was clear that it would wait longer than it may, or miss its target by far."""
    DISPLACED = "displaced"
    """The queue was full, and a request of higher priority, or of a tenant with less in it, took
    its place."""
    NO_BACKEND = "no_backend"
    """The pool has no backend at all; busy ones are waited for."""
    SHUTTING_DOWN = "shutting_down"
    ROUTING_FAILED = "routing_failed"
    """The policy raised, or chose what was no candidate. Always a bug in the policy."""

    @property
    def status(self) -> int:
        """The HTTP status that says the same."""
        return _STATUS[self]


RANKS = {priority: rank for rank, priority in enumerate(Priority)}
"""The lower goes first."""

_STATUS = {
    RefusalReason.QUEUE_FULL: 429,
    RefusalReason.EXPIRED: 503,
    RefusalReason.OVERLOAD: 429,
    RefusalReason.DISPLACED: 429,
    RefusalReason.NO_BACKEND: 503,
    RefusalReason.SHUTTING_DOWN: 503,
    RefusalReason.ROUTING_FAILED: 500,
}


@dataclass(slots=True, frozen=True)
class Refusal:
    """Args:
    retry_after: seconds after which asking again makes sense, 1 to 60.
    """

    reason: RefusalReason
    retry_after: float

    @property
    def status(self) -> int:
        return self.reason.status

    def error(self) -> Refused:
        return Refused(self)


class Refused(Exception):
    """A ticket was refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.reason.value)
        self.refusal = refusal

    @property
    def reason(self) -> RefusalReason:
        return self.refusal.reason

    @property
    def status(self) -> int:
        return self.refusal.status

    @property
    def retry_after(self) -> float:
        return self.refusal.retry_after


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's way to a lease; submitted once.

    When it cannot go at once it waits, and then exactly one of three things happens: `on_grant` is
    called, `on_refuse` is called, or whoever submitted it cancels it. The callbacks run inside
    whatever call made room, often another request's, and must not raise.

    Args:
        request: the facts that limits and policy look at; as of the release once it was granted.
        on_grant: takes the lease of a ticket that waited.
        on_refuse: told why a ticket that waited gets none.
        rematch: looks the chain up again, because what backends hold changes while a ticket waits.
        max_wait: seconds the client is ready to wait; can only shorten the class's limit, and 0
            means not at all.
        avoid: ids of backends that it must not go to.
        only: id of the one backend that it may go to, None for any.
        size: bytes that are kept in memory while it waits.

    Attributes:
        number: which of the tickets that its pool was given it is.
        arrived: when it was submitted.
        looked: when the policy was last asked about it.
        late: it could no longer make its deadline when it was its turn.
        expires: when it has waited as long as it may.
        decision: where it would go as of the last look.
        seconds: prefill it brings there.
        held: of that, what is entered as queued in its line.
        line, lane: where it waits; both are None when it does not.
        reserved: the backend that takes no more of what it competes with until it goes there.
    """

    request: RouteRequest
    on_grant: Callable[[Lease], None]
    on_refuse: Callable[[Refusal], None]
    rematch: Callable[[Chain], Match] | None = None
    max_wait: float | None = None
    avoid: tuple[str, ...] = ()
    only: str | None = None
    size: int = 0
    number: int = field(init=False, default=0)
    arrived: float = field(init=False, default=0.0)
    looked: float = field(init=False, default=0.0)
    late: bool = field(init=False, default=False)
    expires: float = field(init=False, default=inf)
    decision: Decision | None = field(init=False, default=None)
    seconds: float = field(init=False, default=0.0)
    held: float = field(init=False, default=0.0)
    line: Line | None = field(init=False, default=None)
    lane: Lane | None = field(init=False, default=None)
    reserved: str | None = field(init=False, default=None)

    def allows(self, backend: str) -> bool:
        """Whether it may go to a backend, by its id."""
        return backend not in self.avoid and self.only in (None, backend)

    def arrive(self, number: int, now: float, limit: float) -> None:
        """It is submitted, and may wait for at most `limit` seconds."""
        if self.request.line is not None or self.request.urgent:
            # It was placed before: that backend may be gone by now.
            self.request = msgspec.structs.replace(self.request, line=None, urgent=False)
        self.number = number
        self.arrived = self.looked = now
        self.expires = now + (limit if self.max_wait is None else min(limit, self.max_wait))

    def refresh(self, now: float, *, urgent: bool = False) -> RouteRequest:
        """The request as of now. Its class stays: waiting relabels nothing."""
        request = self.request
        match = request.match if self.rematch is None else self.rematch(request.chain)
        load = None if self.line is None else self.line.load
        self.request = msgspec.structs.replace(
            request, match=match, now=now, urgent=urgent, line=None if load is None else load.id
        )
        return self.request
