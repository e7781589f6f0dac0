"""Random histories of a pool, held against a recount that shares next to no code with it: only
what streams can bear is asked of them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.config import LengthRange, Scheduling
from gateway.scheduling.granter import RELOOK
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.placer import LONGEST_HOLD
from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import RefusalReason
from gateway.types import Decision, Match, Priority, Reason, Role, WorkClass
from policies.base import Candidate, RouteRequest
from policies.cost import SAFE_FILL
from policies.registry import build, names
from tests.scheduling.virtual import (
    DECODE,
    PREFILL,
    Caller,
    Scripted,
    VirtualClock,
    ask,
    is_clear,
    limits,
)

SIZE = (0, 1, 40, 100, 150)
SIZES = st.sampled_from(SIZE)
CLASSES = st.sampled_from([PREFILL, DECODE])
PRIORITIES = st.sampled_from(list(Priority))
PACES = st.sampled_from([None, 0.1, 0.5])
WHICH = st.integers(0, 1000)
LONG = 90
CAPACITY = 400
CHAINS = st.sampled_from([b"block..1", b"block..2", b"block..3"])


class ShortestQueue(Scripted):
    """Sends where the least prefill goes first."""

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        chosen = min(candidates, key=lambda load: load.queue_seconds(request))
        return Decision(chosen.id, Reason.LOAD)


class Moody(ShortestQueue):
    """Fails at every third request."""

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        self.offers.append([])
        if len(self.offers) % 3 == 0:
            raise ValueError("in a mood")
        return super().choose(request, candidates)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        self.sent.append(candidate.id)
        if len(self.sent) % 5 == 0:
            raise ValueError("in a mood")


POLICIES = {
    **{name: lambda name=name: build(name, {}) for name in names()},
    "shortest_queue": ShortestQueue,
    "moody": Moody,
}
# Half of the time the one that says most about what must not wait.
NAMES = st.sampled_from(["shortest_queue"] * len(POLICIES) + sorted(POLICIES))


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.loads = {
            id: BackendLoad(id, prefill_rate=100.0, capacity_tokens=CAPACITY, chunk_tokens=50)
            for id in "abc"
        }
        self.sharing: dict[tuple[str, bytes], tuple[int, list[Lease]]] = {}
        self.own_tokens: dict[Lease, tuple[bytes, int]] = {}
        self.scheduling = self.small_limits(1, 2, 100, 2, None)
        self.pool = Pool("m", Role.UNIFIED, ShortestQueue(), self.scheduling, self.clock)
        self.pool.set_backends(list(self.loads.values()))
        self.present = set("abc")
        self.callers: list[Caller] = []
        self.held: list[Lease] = []
        self.decoding: list[Lease] = []
        self.spent: list[Lease] = []
        self.gives_up_at_once = False

    @staticmethod
    def small_limits(
        prefill: int,
        decode: int,
        tokens: int,
        long: int,
        gate: float | None,
        order: str = "work",
        pace: float | None = None,
    ) -> Scheduling:
        shared = {"max_uncached_tokens": tokens, "max_waiting": 4, "max_wait": 10.0}
        return limits(
            prefill={"max_requests": prefill, **shared},
            decode={"max_requests": decode, **shared},
            gate=gate,
            order=order,
            pace=pace,
            ranges=(LengthRange(min_tokens=LONG, max_requests=long),),
        )

    @initialize(
        gate=st.sampled_from([None, 0.5, 0.5]),
        name=NAMES,
        tokens=st.sampled_from([100, 1000]),
        requests=st.sampled_from([1, 2, 9]),
        order=st.sampled_from(["deadline", "arrival", "work"]),
        pace=PACES,
    )
    def begin(
        self,
        gate: float | None,
        name: str,
        tokens: int,
        requests: int,
        order: str,
        pace: float | None,
    ) -> None:
        self.scheduling = self.small_limits(requests, requests, tokens, 2, gate, order, pace)
        self.pool.scheduling = self.scheduling
        self.pool.policy = POLICIES[name]()

    # what happens

    @rule(
        work_class=CLASSES,
        tokens=SIZES,
        chain=CHAINS,
        held=st.dictionaries(st.sampled_from("abc"), SIZES),
        tenant=st.sampled_from(["x", "y", "z"]),
        priority=PRIORITIES,
        due_in=st.sampled_from([0.1, 3.0, 20.0]),
        max_wait=st.sampled_from([None, None, 0.0, 5.0]),
        avoid=st.sampled_from([(), (), ("a",), ("a", "b", "c")]),
    )
    def submit(
        self,
        work_class: WorkClass,
        tokens: int,
        chain: bytes,
        held: dict[str, int],
        tenant: str,
        priority: Priority,
        due_in: float,
        max_wait: float | None,
        avoid: tuple[str, ...],
    ) -> None:
        match = Match(dict.fromkeys(held, 1), {id: float(hit) for id, hit in held.items()})
        now = self.clock.now
        request = ask(work_class, tokens, match, chain, now, tenant, priority, now + due_in)
        caller = Caller(request, max_wait=max_wait, avoid=avoid)
        caller.ticket.on_grant = lambda lease: self.granted(caller, lease)
        self.callers.append(caller)
        caller.submit(self.pool)
        for lease in caller.leases:
            if lease not in self.held and lease not in self.spent:
                self.dispatched(caller, lease)

    def granted(self, caller: Caller, lease: Lease) -> None:
        assert self.clock.now < caller.ticket.expires
        caller.granted(lease)
        self.dispatched(caller, lease)
        if self.gives_up_at_once:
            self.release_lease(lease)

    def dispatched(self, caller: Caller, lease: Lease) -> None:
        """Limits are limits, at the backends, at the moment when something goes there."""
        load = self.loads[lease.backend_id]
        assert lease.backend_id in self.present
        assert lease.backend_id not in caller.ticket.avoid
        if self.scheduling.gate is not None:
            before = load.pending_seconds(self.clock.now) - lease.prefill_seconds
            assert before < self.scheduling.gate
            assert load.memory_tokens <= SAFE_FILL * CAPACITY or load.in_flight == 1
            spoilt = load.streams.spoilt(self.clock.now, before, lease.prefill_seconds)
            assert (
                spoilt <= self.scheduling.pace_tolerance
                or self.has_waited(caller)
                or self.goes_in_anothers_place(caller, load, before)
            )
        self.count_memory(caller, lease)
        self.held.append(lease)
        own = self.held_at(lease.backend_id, lease.work_class)
        pending = [other for other in own if other not in self.decoding]
        limit = self.scheduling.prefill if lease.work_class is PREFILL else self.scheduling.decode
        assert len(own) <= limit.max_requests
        uncached = sum(other.uncached_tokens for other in pending)
        assert uncached <= limit.max_uncached_tokens or pending == [lease]
        if lease.prompt_tokens >= LONG:
            [length] = self.scheduling.ranges
            assert length.max_requests is not None
            assert len(self.long_at(lease.backend_id)) <= length.max_requests

    def has_waited(self, caller: Caller) -> bool:
        """Whether it goes whatever it does to streams."""
        ticket = caller.ticket
        waited, target = self.clock.now - ticket.arrived, ticket.request.deadline - ticket.arrived
        return waited >= min(LONGEST_HOLD * target, 0.5 * (ticket.expires - ticket.arrived))

    def goes_in_anothers_place(self, caller: Caller, load: BackendLoad, before: float) -> bool:
        """Whether somebody of another rank could go: then the one whose turn it is does."""
        request, tolerance = caller.ticket.request, self.scheduling.pace_tolerance
        return any(
            (other.ticket.request.priority, other.ticket.request.tenant)
            != (request.priority, request.tenant)
            and (
                load.streams.spoilt(self.clock.now, before, other.ticket.seconds) <= tolerance
                or self.has_waited(other)
            )
            for other in self.waiting()
        )

    def may_hold(self, id: str) -> bool:
        load = self.loads[id]
        short = load.memory_tokens + max(SIZE) > SAFE_FILL * CAPACITY
        return short or (self.scheduling.pace is not None and len(load.streams) > 0)

    def count_memory(self, caller: Caller, lease: Lease) -> None:
        """Its own tokens, and with the first of those that share a prefix that prefix."""
        request = caller.ticket.request
        anchor = request.chain if lease.backend_id in request.match.blocks else b""
        cached = lease.prompt_tokens - lease.uncached_tokens
        self.own_tokens[lease] = anchor, lease.uncached_tokens
        if anchor:
            group = self.sharing.setdefault((lease.backend_id, anchor), (cached, []))
            group[1].append(lease)

    @precondition(lambda self: self.held)
    @rule(which=WHICH, watched=st.booleans())
    def first_token(self, which: int, watched: bool) -> None:
        lease = self.held[which % len(self.held)]
        if lease not in self.decoding:
            self.decoding.append(lease)
            if watched:
                began = self.clock.now
                lease.progress = lambda: 1 + int((self.clock.now - began) / 0.05)
        lease.first_token()

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def release(self, which: int) -> None:
        self.release_lease(self.held[which % len(self.held)])

    def release_lease(self, lease: Lease) -> None:
        self.held.remove(lease)
        if lease in self.decoding:
            self.decoding.remove(lease)
        self.spent.append(lease)
        anchor, _ = self.own_tokens.pop(lease)
        if anchor:
            key = lease.backend_id, anchor
            self.sharing[key][1].remove(lease)
            if not self.sharing[key][1]:
                del self.sharing[key]
        lease.output_tokens = 20
        lease.release()

    @precondition(lambda self: self.spent)
    @rule(which=WHICH, late=st.sampled_from(["release", "first_token"]))
    def call_again(self, which: int, late: str) -> None:
        getattr(self.spent[which % len(self.spent)], late)()

    @precondition(lambda self: self.callers)
    @rule(which=WHICH)
    def cancel(self, which: int) -> None:
        caller = self.callers[which % len(self.callers)]
        if caller.waits:
            caller.cancel(self.pool)
        else:
            self.pool.cancel(caller.ticket)

    @rule(seconds=st.sampled_from([0.2, 0.5, 4.0, 11.0]), timer=st.booleans())
    def wait(self, seconds: float, timer: bool) -> None:
        self.clock.advance(seconds)
        if timer:
            self.pool.expire()

    @rule(present=st.sets(st.sampled_from("abc")))
    def set_backends(self, present: set[str]) -> None:
        self.present = present
        self.pool.set_backends([self.loads[id] for id in sorted(present)])

    @rule(
        prefill=st.integers(1, 3),
        decode=st.integers(1, 3),
        tokens=st.sampled_from([50, 1000]),
        long=st.integers(1, 3),
        gate=st.sampled_from([None, 0.5, 2.0]),
        order=st.sampled_from(["deadline", "arrival", "work"]),
        pace=PACES,
    )
    def set_limits(
        self,
        prefill: int,
        decode: int,
        tokens: int,
        long: int,
        gate: float | None,
        order: str,
        pace: float | None,
    ) -> None:
        self.scheduling = self.small_limits(prefill, decode, tokens, long, gate, order, pace)
        self.pool.scheduling = self.scheduling

    @rule(name=NAMES)
    def set_policy(self, name: str) -> None:
        self.pool.policy = POLICIES[name]()

    @rule(gives_up=st.booleans())
    def clients_give_up(self, gives_up: bool) -> None:
        self.gives_up_at_once = gives_up

    # what always holds

    def held_at(self, id: str, work_class: WorkClass) -> list[Lease]:
        return [
            lease
            for lease in self.held
            if lease.backend_id == id and lease.work_class is work_class
        ]

    def long_at(self, id: str) -> list[Lease]:
        return [
            lease for lease in self.held if lease.backend_id == id and lease.prompt_tokens >= LONG
        ]

    def waiting(self) -> list[Caller]:
        return [caller for caller in self.callers if caller.waits]

    @invariant()
    def the_ledger_is_the_sum_of_the_leases(self) -> None:
        for id, load in self.loads.items():
            here = [lease for lease in self.held if lease.backend_id == id]
            pending = [lease for lease in here if lease not in self.decoding]
            assert load.in_flight == len(here)
            assert load.decoding == len(here) - len(pending)
            assert load.pending_tokens == sum(lease.uncached_tokens for lease in pending)
            assert load.context_tokens == sum(lease.prompt_tokens for lease in here)
            shared = [tokens for (at, _), (tokens, _) in self.sharing.items() if at == id]
            own = [self.own_tokens[lease][1] for lease in here]
            assert load.memory_tokens == sum(shared) + sum(own)
            watched = [lease for lease in self.decoding if lease.progress and lease in here]
            assert len(load.streams) == len(watched)
            most = sum(lease.prefill_seconds for lease in pending)
            assert -1e-9 <= load.pending_seconds(self.clock.now) <= most + 1e-9
            long = self.long_at(id)
            assert load.over(LONG).requests == len(long)
            assert load.over(LONG).tokens == sum(lease.prompt_tokens for lease in long)
            for work_class in (PREFILL, DECODE):
                ledger = load.of(work_class)
                mine = [lease for lease in pending if lease.work_class is work_class]
                assert ledger.in_flight == len(self.held_at(id, work_class))
                assert ledger.pending == len(mine)
                assert ledger.uncached_tokens == sum(lease.uncached_tokens for lease in mine)
            queued = sum(
                caller.ticket.held
                for caller in self.waiting()
                if caller.ticket.line is not None and caller.ticket.line.load is load
            )
            assert abs(load.held_seconds() - queued) < 1e-6

    @invariant()
    def everybody_who_waits_is_counted_and_stands_somewhere(self) -> None:
        snapshot, waiting = self.pool.snapshot(), self.waiting()
        for work_class in (PREFILL, DECODE):
            own = [c for c in waiting if c.ticket.request.work_class is work_class]
            assert self.pool.depth(work_class) == len(own) <= 4
            tokens = sum(caller.ticket.request.prompt_tokens for caller in own)
            assert snapshot.queues[work_class].waiting_tokens == tokens
        assert sum(snapshot.backends.values()) + snapshot.unplaced == len(waiting)
        assert snapshot.tenants == len({caller.ticket.request.tenant for caller in waiting})

    @rule()
    def nothing_waits_that_could_go(self) -> None:
        """Where the policy always prefers a backend whose gate is open: to any, or at least, while
        some are held for memory or for streams, to one that nobody waits for."""
        if type(self.pool.policy) is not ShortestQueue:
            return
        self.clock.advance(RELOOK)
        self.pool.expire()
        if any(caller.ticket.reserved for caller in self.waiting()):
            return
        able = self.present
        holds = self.scheduling.gate is not None and any(self.may_hold(id) for id in self.present)
        if holds:
            able = {id for id, count in self.pool.snapshot().backends.items() if not count}
        for caller in self.waiting():
            request = caller.ticket.request
            limit = self.scheduling.prefill
            if request.work_class is DECODE:
                limit = self.scheduling.decode
            [length] = self.scheduling.ranges
            assert length.max_requests is not None
            for id in able - set(caller.ticket.avoid):
                gate, load = self.scheduling.gate, self.loads[id]
                own = self.held_at(id, request.work_class)
                pending = [lease for lease in own if lease not in self.decoding]
                tokens = request.prompt_tokens - int(request.match.tokens.get(id, 0.0))
                uncached = sum(lease.uncached_tokens for lease in pending)
                is_open = gate is None or load.pending_seconds(self.clock.now) < gate
                room = len(own) < limit.max_requests
                fits = not pending or uncached + max(0, tokens) <= limit.max_uncached_tokens
                is_long = request.prompt_tokens >= LONG
                long = not is_long or len(self.long_at(id)) < length.max_requests
                memory = gate is None or load.fits_memory(request)
                bearable = not load.streams or self.has_waited(caller)
                preferred = not holds or self.is_preferred(load, caller)
                able_to = is_open and room and fits and long and memory and bearable
                assert not (able_to and preferred)

    def is_preferred(self, load: BackendLoad, caller: Caller) -> bool:
        """Whether the policy, which sees no streams, gives a waiting request to a backend rather
        than to the one that it is held for."""
        line, now = caller.ticket.line, self.clock.now
        home = None if line is None else line.load
        return home is None or load.pending_seconds(now) < home.pending_seconds(now)

    @invariant()
    def nobody_gets_two_answers(self) -> None:
        for caller in self.callers:
            answers = len(caller.leases) + len(caller.refusals) + caller.cancelled
            assert answers <= 1

    @invariant()
    def high_priority_is_displaced_by_nobody(self) -> None:
        for caller in self.callers:
            reasons = {refusal.reason for refusal in caller.refusals}
            if RefusalReason.DISPLACED in reasons:
                request = caller.ticket.request
                alone = {c.ticket.request.tenant for c in self.callers} == {request.tenant}
                assert not (alone and request.priority is Priority.HIGH)

    def teardown(self) -> None:
        while self.held:
            self.release_lease(self.held[0])
        self.clock.advance(100.0)
        self.pool.expire()
        while self.held:
            self.release_lease(self.held[0])
        assert self.pool.is_empty()
        for caller in self.callers:
            assert len(caller.leases) + len(caller.refusals) + caller.cancelled == 1
        assert all(is_clear(load) for load in self.loads.values())
        granted = sum(self.pool.granted(work_class) for work_class in (PREFILL, DECODE))
        refused = sum(sum(self.pool.refused(c).values()) for c in (PREFILL, DECODE))
        assert granted == len(self.spent)
        assert granted + refused + sum(c.cancelled for c in self.callers) == len(self.callers)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
