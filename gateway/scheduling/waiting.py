"""The tickets that wait in a pool: in their queues and lines, and as their tenants'."""

from __future__ import annotations

from gateway.config import Scheduling
from gateway.scheduling.lines import Lines
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.placer import Placer
from gateway.scheduling.queue import ClassQueue
from gateway.scheduling.tenants import Tenants
from gateway.scheduling.ticket import Refusal, RefusalReason, Refused, Ticket
from gateway.types import Clock, WorkClass

MIN_RETRY_AFTER = 1.0
MAX_RETRY_AFTER = 60.0


class Waiting:
    """Enters and leaves tickets in all places at once, and refuses them.

    Attributes:
        lines: in which order they go.
        tenants: whose they are.
    """

    __slots__ = ("_clock", "_count", "_decode", "_placer", "_prefill", "lines", "tenants")

    def __init__(self, placer: Placer, clock: Clock) -> None:
        scheduling = placer.scheduling
        self.tenants = Tenants(scheduling.tenants)
        self.lines = Lines(self.tenants, scheduling)
        self._placer = placer
        self._clock = clock
        self._prefill = ClassQueue(WorkClass.PREFILL, scheduling.prefill)
        self._decode = ClassQueue(WorkClass.DECODE, scheduling.decode)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self.queue(ticket.request.work_class)

    @property
    def queues(self) -> tuple[ClassQueue, ClassQueue]:
        return self._decode, self._prefill

    def queue(self, work_class: WorkClass) -> ClassQueue:
        return self._prefill if work_class is WorkClass.PREFILL else self._decode

    def set_scheduling(self, scheduling: Scheduling) -> None:
        self.tenants.settings = scheduling.tenants
        self._prefill.limits = scheduling.prefill
        self._decode.limits = scheduling.decode
        self.lines.set_scheduling(scheduling)

    def enter(self, ticket: Ticket, load: BackendLoad | None) -> None:
        """Let a ticket wait for a backend, or for any."""
        self.queue(ticket.request.work_class).push(ticket)
        self._count += 1
        self.tenants.joins(ticket.request.tenant)
        self.lines.stand(ticket, load)

    def leave(self, ticket: Ticket) -> bool:
        """Whether the ticket was waiting."""
        if not self.queue(ticket.request.work_class).remove(ticket):
            return False
        self._count -= 1
        self.tenants.leaves(ticket.request.tenant)
        if ticket.line is not None:
            ticket.line.remove(ticket)
        self._placer.release(ticket)
        return True

    def drop_overdue(self, now: float) -> None:
        """Refuse those that have waited as long as they may."""
        if not self._count:
            return
        for queue in self.queues:
            for ticket in queue.overdue(now):
                self.refuse(ticket, RefusalReason.EXPIRED)

    def refuse(self, ticket: Ticket, reason: RefusalReason) -> None:
        """Refuse a ticket, if it waits."""
        if self.leave(ticket):
            ticket.on_refuse(self.refusal(ticket.request.work_class, reason))

    def refused(
        self, work_class: WorkClass, reason: RefusalReason, seconds: float = 0.0
    ) -> Refused:
        """The same for a ticket that does not wait, to be raised."""
        return self.refusal(work_class, reason, seconds).error()

    def refusal(
        self, work_class: WorkClass, reason: RefusalReason, seconds: float = 0.0
    ) -> Refusal:
        """Count a refusal.

        Args:
            seconds: after which asking again makes sense, where that is known.
        """
        queue = self.queue(work_class)
        queue.refused[reason] += 1
        match reason:
            case RefusalReason.QUEUE_FULL | RefusalReason.EXPIRED | RefusalReason.DISPLACED:
                seconds = queue.drain_seconds(self._clock())
            case RefusalReason.SHUTTING_DOWN | RefusalReason.ROUTING_FAILED:
                # Another gateway, or another try, can take it right away.
                seconds = MIN_RETRY_AFTER
        return Refusal(reason, min(max(seconds, MIN_RETRY_AFTER), MAX_RETRY_AFTER))
