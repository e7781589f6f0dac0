"""Lets waiting tickets go, each in its turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from gateway.scheduling.cached import anchor, uncached_tokens
from gateway.scheduling.lane import is_late
from gateway.scheduling.lease import Lease
from gateway.scheduling.line import Turn
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.placer import Placer, RoutingFailed
from gateway.scheduling.ticket import RefusalReason, Refused, Ticket
from gateway.scheduling.waiting import Waiting
from gateway.types import Clock
from policies.cost import service_seconds

SCAN = 16
"""Tickets that are looked at in vain for one backend, at most: it bounds the time that a release
takes."""

_SCAN_BACKENDS = 2048
"""Backends that are looked at for them in all, at most: in a large pool each look takes long."""
RELOOK = 0.25
"""Seconds after which a ticket in another backend's line is looked at again for an idle one."""


class Granter:
    """Grants leases to the tickets of a pool, as backends come to be able to take more.

    At each backend first the one goes that it is kept for, then those in its line and those that
    wait for any, in turn. One that has to wait there for room, memory or streams is passed over
    without the policy being asked: for streams only by much lighter ones, and what another of lower
    rank has earned by its longer wait falls to it. Backends that could take more than stands in
    their line look at the others' lines, at each ticket at most every `RELOOK` seconds.
    """

    __slots__ = ("_clock", "_placer", "_roomier", "_served", "_serving", "_waiting")

    def __init__(self, waiting: Waiting, placer: Placer, clock: Clock) -> None:
        self._waiting = waiting
        self._placer = placer
        self._clock = clock
        self._roomier: dict[str, BackendLoad] = {}
        self._served: set[str] = set()
        """Those that were asked since the last ticket went."""
        self._serving = False

    def grant(self, ticket: Ticket, load: BackendLoad, now: float, waited: float = 0.0) -> Lease:
        """A lease at the backend that was just chosen for a ticket.

        Args:
            waited: for so many seconds.

        Raises:
            Refused: the policy failed.
        """
        request, decision = ticket.request, ticket.decision
        assert decision is not None
        try:
            self._placer.placed(request, load)
        except RoutingFailed:
            reason = RefusalReason.ROUTING_FAILED
            raise self._waiting.refused(request.work_class, reason) from None
        self._waiting.queue(request.work_class).granted += 1
        counts = self._waiting.tenants.counts(request.tenant)
        return Lease(
            load,
            decision,
            request.work_class,
            request.prompt_tokens,
            uncached_tokens(request, load.id),
            ticket.seconds,
            self._clock,
            waited,
            self._charge(ticket, load) if counts else None,
            self._placer.lengths,
            anchor(request, load.id),
        )

    def _charge(self, ticket: Ticket, load: BackendLoad) -> Callable[[Lease], None] | None:
        """Count the service that a ticket's tenant gets.

        Returns:
            What settles it when it is over; None when it is settled.
        """
        request, tenants = ticket.request, self._waiting.tenants
        tenant = request.tenant
        decode = service_seconds(load, request.prompt_tokens, request.output_tokens)
        if not tenants.charge(tenant, ticket.seconds + decode):
            return None

        def settle(lease: Lease) -> None:
            actual = service_seconds(load, lease.prompt_tokens, lease.output_tokens)
            tenants.settle(tenant, actual - decode)

        return settle

    def serve(self, *loads: BackendLoad) -> None:
        """Let go what can go, as backends may have come to be able to take more.

        Callbacks may release, submit and cancel: calls from within return at once, because the
        loop below comes back to every backend that they name.
        """
        if not self._waiting:
            return
        for load in loads:
            self._roomier[load.id] = load
            self._served.discard(load.id)
        if self._serving:
            return
        self._serving = True
        idle: dict[str, BackendLoad] = {}
        try:
            while self._roomier or self._share_out(idle):
                while self._roomier:
                    id, load = self._roomier.popitem()
                    self._served.add(id)
                    if self._serve_one(load):
                        idle[id] = load
        finally:
            self._serving = False
            self._roomier.clear()
            self._served.clear()

    def _serve_one(self, load: BackendLoad) -> bool:
        """Let go who stands in one backend's line.

        Returns:
            Whether it could take more than stands there.
        """
        now = self._clock()
        self._waiting.drop_overdue(now)
        placer, lines = self._placer, self._waiting.lines
        self._serve_holder(load, now)
        looks = self._looks()
        if load.id in lines:
            lines.of(load).hold_none()
        head: Turn | None = None
        passed: list[tuple[Ticket, BackendLoad | None]] = []
        try:
            while looks > 0 and load.id in lines and placer.is_open(load, now):
                turn = lines.next(load, now, placer)
                if turn is None:
                    return True
                ticket, own = turn.ticket, lines.of(load)
                lighter = own.lighter(ticket.request)
                if self._is_worth_asking(ticket, load, now, lighter):
                    if self._try(turn, now, lighter=lighter):
                        looks = self._looks()
                        continue
                    if ticket.line is not turn.line and ticket.line is not lines.homeless:
                        looks -= 1
                        continue
                elif placer.is_overdue(ticket, load, now):
                    placer.reserve(load, ticket)
                elif (
                    head is not None
                    and _outranks(head.ticket, ticket)
                    and placer.may_go(ticket, load, now)
                ):
                    # Its wait has earned a release, which falls to the one whose turn it is.
                    passed.remove((head.ticket, load))
                    lines.stand(head.ticket, load)
                    self._try(head, now, earned=True)
                    own.hold_none()
                    head, looks = None, looks - 1
                    continue
                # It has to wait here: those behind it may go first.
                line = ticket.line
                assert line is not None
                line.remove(ticket)
                passed.append((ticket, line.load))
                if line.load is load:
                    head = head or turn
                    own.hold_back(ticket)
                looks -= 1
            return False
        finally:
            for ticket, home in passed:
                if ticket in self._waiting:
                    lines.stand(ticket, home if home is None or home.id in lines else None)

    def _serve_holder(self, load: BackendLoad, now: float) -> None:
        """Let go the one that a backend is kept for, if it can go: it has waited longest."""
        ticket = self._placer.holder(load)
        if ticket is None or not self._placer.fits(load, ticket):
            return
        if self._placer.may_go(ticket, load, now):
            self._try(self._waiting.lines.of(load).out_of_turn(ticket), now)

    def _is_worth_asking(
        self, ticket: Ticket, load: BackendLoad, now: float, lighter: float
    ) -> bool:
        """Whether the policy is asked about a ticket whose turn it is at a backend."""
        if ticket.line is self._waiting.lines.homeless:
            return self._placer.fits(load, ticket)
        return self._placer.may_go(ticket, load, now, lighter=lighter)

    def _share_out(self, idle: Mapping[str, BackendLoad]) -> bool:
        """Give backends that could take more what others' lines hold, if the policy agrees.

        Returns:
            Whether anything went.
        """
        lines, placer = self._waiting.lines, self._placer
        if not placer.policy.late_binding:
            return False
        now = self._clock()
        went = False
        turns: list[Turn] | None = None
        for _ in range(self._looks()):
            if not any(
                load.id in lines and not lines.of(load) and placer.is_open(load, now)
                for load in idle.values()
            ):
                break
            if turns is None:
                turns = lines.most_urgent(now, SCAN)
            turn = next((turn for turn in turns if _is_worth_a_look(turn, now)), None)
            if turn is None:
                break
            turns.remove(turn)
            went = self._try(turn, now, spare=True) or went
        return went or bool(self._roomier)

    def _is_mostly_idle(self) -> bool:
        """Whether at least half of the backends have no prefill, pending or waiting."""
        lines, backends = self._waiting.lines, self._placer.backends
        idle = sum(not load.pending and not lines.of(load) for load in backends)
        return 2 * idle >= len(backends)

    def _looks(self) -> int:
        """How many tickets to look at: fewer where each look takes long."""
        return max(1, min(SCAN, _SCAN_BACKENDS // max(1, len(self._placer.backends))))

    def _try(
        self,
        turn: Turn,
        now: float,
        *,
        spare: bool = False,
        lighter: float = inf,
        earned: bool = False,
    ) -> bool:
        """Look at a waiting ticket anew: it goes, changes lines, or stays.

        Args:
            lighter: as `Placer.may_go` takes it.
            earned: it goes where it stands if there is room, whatever it does to the streams.
            spare: there are backends that nobody waits for. One that is late may then go where its
                first token comes soonest, whatever that costs, if most of the pool is idle: else it
                could stay for long behind one long prefill where its prefix is. In a busy pool that
                would destroy the reuse that keeps it going.

        Returns:
            Whether it waits no longer.
        """
        ticket, waiting = turn.ticket, self._waiting
        waiting.lines.strike(ticket)
        ticket.refresh(now, urgent=spare and is_late(ticket, now) and self._is_mostly_idle())
        ticket.looked = now
        try:
            load = turn.line.load if earned else self._placer.look(ticket, now)
        except RoutingFailed:
            waiting.refuse(ticket, RefusalReason.ROUTING_FAILED)
            return True
        if load is None or not self._may_go(load, turn, now, lighter, earned):
            waiting.lines.stand(ticket, load)
            return False
        turn.line.count(turn, self._placer.scheduling)
        waiting.leave(ticket)
        self._served.clear()
        try:
            lease = self.grant(ticket, load, now, now - ticket.arrived)
        except Refused as refused:
            ticket.on_refuse(refused.refusal)
            return True
        waiting.queue(lease.work_class).note_pace(now, lease.queue_seconds)
        try:
            ticket.on_grant(lease)
        except BaseException:
            lease.release()
            raise
        return True

    def _may_go(
        self, load: BackendLoad, turn: Turn, now: float, lighter: float, earned: bool
    ) -> bool:
        """Whether a ticket goes where it was just found to be best off."""
        ticket, placer = turn.ticket, self._placer
        if earned:
            return placer.takes(load, ticket.request, now) and placer.fits(load, ticket)
        if not placer.may_go(ticket, load, now, lighter=lighter):
            return False
        line = self._waiting.lines.of(load)
        if line is turn.line or not line or load.id in self._served:
            return True
        # Others stand there that may be able to go: it joins them, and they are asked in order.
        self._roomier[load.id] = load
        return False


def _outranks(head: Ticket, other: Ticket) -> bool:
    """Whether it is for its priority or its tenant that one goes before the other. Between equals
    nothing is gained by changing places."""
    return (head.request.priority, head.request.tenant) != (
        other.request.priority,
        other.request.tenant,
    )


def _is_worth_a_look(turn: Turn, now: float) -> bool:
    return turn.ticket.line is turn.line and now - turn.ticket.looked >= RELOOK
