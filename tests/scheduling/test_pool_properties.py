"""Random histories of a pool, held against a recount that shares no code with it."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.config import Scheduling
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.types import Match, Role, WorkClass
from policies.registry import build, names
from tests.scheduling.virtual import DECODE, PREFILL, Caller, VirtualClock, ask, is_clear, limits

SIZES = st.sampled_from([0, 1, 40, 100, 150])
CLASSES = st.sampled_from([PREFILL, DECODE])
WHICH = st.integers(0, 1000)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.loads = {id: BackendLoad(id) for id in "abc"}
        self.scheduling = self.small_limits(1, 2, 100)
        self.pool = Pool("m", Role.UNIFIED, build("least_load", {}), self.scheduling, self.clock)
        self.pool.set_backends(list(self.loads.values()))
        self.present = set("abc")
        self.callers: list[Caller] = []
        self.held: list[Lease] = []
        self.decoding: list[Lease] = []
        self.spent: list[Lease] = []
        self.gives_up_at_once = False

    @staticmethod
    def small_limits(prefill: int, decode: int, tokens: int) -> Scheduling:
        shared = {"max_uncached_tokens": tokens, "max_waiting": 4, "max_wait": 10.0}
        return limits(
            prefill={"max_requests": prefill, **shared}, decode={"max_requests": decode, **shared}
        )

    # what happens

    @rule(work_class=CLASSES, tokens=SIZES, held=st.dictionaries(st.sampled_from("abc"), SIZES))
    def submit(self, work_class: WorkClass, tokens: int, held: dict[str, int]) -> None:
        match = Match(dict.fromkeys(held, 1), {id: float(hit) for id, hit in held.items()})
        caller = Caller(ask(work_class, tokens, match, now=self.clock.now))
        caller.ticket.on_grant = lambda lease: self.granted(caller, lease)
        self.callers.append(caller)
        caller.submit(self.pool)
        for lease in caller.leases:
            if lease not in self.held and lease not in self.spent:
                self.dispatched(lease)

    def granted(self, caller: Caller, lease: Lease) -> None:
        assert self.clock.now < caller.ticket.deadline
        caller.granted(lease)
        self.dispatched(lease)
        if self.gives_up_at_once:
            self.release_lease(lease)

    def dispatched(self, lease: Lease) -> None:
        self.held.append(lease)
        own = self.held_at(lease.backend_id, lease.work_class)
        pending = [other for other in own if other not in self.decoding]
        limit = self.scheduling.prefill if lease.work_class is PREFILL else self.scheduling.decode
        assert lease.backend_id in self.present
        assert len(own) <= limit.max_requests
        uncached = sum(other.uncached_tokens for other in pending)
        assert uncached <= limit.max_uncached_tokens or pending == [lease]

    @precondition(lambda self: self.held)
    @rule(which=WHICH)
    def first_token(self, which: int) -> None:
        lease = self.held[which % len(self.held)]
        if lease not in self.decoding:
            self.decoding.append(lease)
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

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]), timer=st.booleans())
    def wait(self, seconds: float, timer: bool) -> None:
        self.clock.advance(seconds)
        if timer:
            self.pool.expire()

    @rule(present=st.sets(st.sampled_from("abc")))
    def set_backends(self, present: set[str]) -> None:
        self.present = present
        self.pool.set_backends([self.loads[id] for id in sorted(present)])

    @rule(prefill=st.integers(1, 3), decode=st.integers(1, 3), tokens=st.sampled_from([50, 200]))
    def set_limits(self, prefill: int, decode: int, tokens: int) -> None:
        self.scheduling = self.small_limits(prefill, decode, tokens)
        self.pool.scheduling = self.scheduling

    @rule(name=st.sampled_from(names()))
    def set_policy(self, name: str) -> None:
        self.pool.policy = build(name, {})

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

    @invariant()
    def the_ledger_is_the_sum_of_the_leases(self) -> None:
        for id, load in self.loads.items():
            here = [lease for lease in self.held if lease.backend_id == id]
            pending = [lease for lease in here if lease not in self.decoding]
            assert load.in_flight == len(here)
            assert load.decoding == len(here) - len(pending)
            assert load.pending_tokens == sum(lease.uncached_tokens for lease in pending)
            assert load.context_tokens == sum(lease.prompt_tokens for lease in here)
            for work_class in (PREFILL, DECODE):
                own = load.of(work_class)
                mine = [lease for lease in pending if lease.work_class is work_class]
                assert own.in_flight == len(self.held_at(id, work_class))
                assert own.pending == len(mine)
                assert own.uncached_tokens == sum(lease.uncached_tokens for lease in mine)

    @invariant()
    def nothing_waits_that_could_go(self) -> None:
        for work_class in (PREFILL, DECODE):
            waiting = [
                caller
                for caller in self.callers
                if caller.waits and caller.ticket.request.work_class is work_class
            ]
            assert self.pool.depth(work_class) == len(waiting)
            if not waiting or waiting[0].ticket.deadline <= self.clock.now:
                continue
            request = waiting[0].ticket.request
            limit = self.scheduling.prefill if work_class is PREFILL else self.scheduling.decode
            for id in self.present:
                own = self.held_at(id, work_class)
                pending = [lease for lease in own if lease not in self.decoding]
                tokens = request.prompt_tokens - request.match.tokens.get(id, 0.0)
                uncached = sum(lease.uncached_tokens for lease in pending)
                room = len(own) < limit.max_requests
                fits = not pending or uncached + max(0.0, tokens) <= limit.max_uncached_tokens
                assert not (room and fits)

    @invariant()
    def nobody_gets_two_answers(self) -> None:
        for caller in self.callers:
            answers = len(caller.leases) + len(caller.refusals) + caller.cancelled
            assert answers <= 1

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
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
