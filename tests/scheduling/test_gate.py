"""What the pool holds back, and the order in which it lets go."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.scheduling.granter import RELOOK
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.types import Decision, Match, Priority
from policies.base import Candidate, RouteRequest
from policies.registry import build
from tests.scheduling.virtual import (
    DECODE,
    PREFILL,
    Caller,
    Scripted,
    VirtualClock,
    ask,
    limits,
    make_pool,
)

GATE = limits(gate=0.5)
SECOND = 10_000
"""Tokens that `load_of` prefills in a second."""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def held(pool: Pool, callers: list[Caller]) -> list[int]:
    """Lets go one after the other; in which order they were granted."""
    order: list[int] = []
    for _ in range(len(callers)):
        for number, caller in enumerate(callers):
            if caller.leases and number not in order:
                order.append(number)
                caller.lease.first_token()
    return order


def test_what_comes_while_much_is_pending_is_held(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=GATE)
    first = Caller(ask(tokens=SECOND)).submit(pool)
    assert not pool.is_open(pool.backends[0])
    second = Caller(ask(tokens=SECOND)).submit(pool)
    assert second.waits
    assert pool.backends[0].queue_seconds(ask(now=clock.now)) == pytest.approx(2.0)
    first.lease.first_token()
    assert second.leases
    assert pool.backends[0].queue_seconds(ask(now=clock.now)) == pytest.approx(1.0)


def test_the_gate_opens_with_time(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=GATE)
    Caller(ask(tokens=SECOND)).submit(pool)
    second = Caller(ask(tokens=SECOND)).submit(pool)
    clock.advance(0.49)
    pool.expire()
    assert second.waits
    clock.advance(0.02)
    pool.expire()
    assert second.leases


def test_those_who_wait_go_before_a_newcomer(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=GATE)
    Caller(ask(tokens=SECOND)).submit(pool)
    waiting = Caller(ask(tokens=SECOND)).submit(pool)
    clock.advance(0.6)
    newcomer = Caller(ask(tokens=100)).submit(pool)
    assert waiting.leases
    assert newcomer.waits


def test_a_newcomer_is_looked_at_again_after_those_who_wait(clock: VirtualClock) -> None:
    """The one slot that it was to have may be taken by then."""
    pool = make_pool(clock, scheduling=limits(gate=0.5, decode={"max_requests": 2}))
    Caller(ask(tokens=SECOND)).submit(pool)
    waiting = Caller(ask(tokens=10)).submit(pool)
    clock.advance(0.6)
    newcomer = Caller(ask(tokens=10)).submit(pool)
    assert waiting.leases
    assert newcomer.waits
    assert pool.backends[0].decode.in_flight == 2


def test_a_retry_goes_only_where_nothing_is_held_back(clock: VirtualClock) -> None:
    pool = make_pool(clock, "ab", GATE, Scripted())
    Caller(ask(tokens=SECOND)).submit(pool)
    retry = Caller(ask(), max_wait=0.0).submit(pool)
    assert retry.lease.backend_id == "b"
    Caller(ask(tokens=SECOND)).submit(pool).cancel(pool)
    assert Caller(ask(), max_wait=0.0, avoid=("b",)).submit(pool).refusal.status == 503


def test_one_that_is_better_off_elsewhere_by_now_goes_there(clock: VirtualClock) -> None:
    policy = Scripted()
    pool = make_pool(clock, "ab", GATE, policy)
    policy.answer = "a"
    first = Caller(ask(tokens=SECOND)).submit(pool)
    second = Caller(ask(tokens=SECOND)).submit(pool)
    policy.answer = "b"
    first.lease.first_token()
    assert second.lease.backend_id == "b"
    assert policy.sent == ["a", "b"]


def test_a_backend_with_nothing_in_line_takes_what_the_policy_gives_it(
    clock: VirtualClock,
) -> None:
    policy = Scripted()
    pool = make_pool(clock, "ab", GATE, policy)
    policy.answer = "b"
    on_b = Caller(ask(tokens=SECOND)).submit(pool)
    policy.answer = "a"
    on_a = Caller(ask(tokens=SECOND)).submit(pool)
    waiting = Caller(ask(tokens=SECOND)).submit(pool)
    on_b.lease.first_token()
    assert waiting.waits
    policy.answer = "b"
    clock.advance(RELOOK)
    on_b.lease.release()
    assert waiting.lease.backend_id == "b"
    assert on_a.lease.backend_id == "a"


def test_one_that_stays_does_not_hold_up_those_behind_it(clock: VirtualClock) -> None:
    """The head's prefix is where it waits; the next one's is nowhere."""
    pool = make_pool(clock, "ab", GATE, "prefix_affinity")
    a, b = pool.backends
    pool.set_backends([a])
    Caller(ask(tokens=SECOND)).submit(pool)
    hit = Match({"a": 5 * SECOND // 100}, {"a": 4.9 * SECOND})
    stays = Caller(ask(tokens=5 * SECOND, match=hit, deadline=clock.now + 1)).submit(pool)
    goes = Caller(ask(tokens=SECOND, deadline=clock.now + 9)).submit(pool)
    clock.advance(RELOOK)
    pool.set_backends([a, b])
    assert stays.waits
    assert goes.lease.backend_id == "b"


def test_a_policy_that_does_not_look_at_load_keeps_its_first_choice(clock: VirtualClock) -> None:
    pool = make_pool(clock, "ab", GATE, "round_robin")
    pair = [Caller(ask(tokens=SECOND)).submit(pool) for _ in range(2)]
    third = Caller(ask(tokens=SECOND)).submit(pool)
    pair[1].lease.release()
    pool.expire()
    assert third.waits
    pair[0].lease.first_token()
    assert third.lease.backend_id == "a"


def test_the_most_urgent_goes_first(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=GATE)
    callers = [Caller(ask(tokens=SECOND)).submit(pool)]
    for due in (30.0, 10.0, 20.0):
        request = ask(tokens=SECOND, deadline=clock.now + due)
        callers.append(Caller(request).submit(pool))
    assert held(pool, callers) == [0, 2, 3, 1]


@pytest.mark.parametrize(("order", "expected"), [("arrival", [0, 1, 2]), ("work", [0, 2, 1])])
def test_the_order_can_be_changed_while_tickets_wait(
    clock: VirtualClock, order: str, expected: list[int]
) -> None:
    pool = make_pool(clock, scheduling=GATE)
    callers = [Caller(ask(tokens=SECOND)).submit(pool)]
    for tokens, due in ((3 * SECOND, 20.0), (SECOND, 10.0)):
        callers.append(Caller(ask(tokens=tokens, deadline=clock.now + due)).submit(pool))
    pool.scheduling = limits(gate=0.5, order=order)
    assert held(pool, callers) == expected


def test_what_nobody_has_room_for_waits_in_every_line(clock: VirtualClock) -> None:
    """It is more urgent than what stands at the backend that it fits in first."""
    pool = make_pool(clock, "ab", limits(gate=0.5, prefill={"max_requests": 1}), Scripted())
    on_a, on_b = (Caller(ask(PREFILL, SECOND)).submit(pool) for _ in range(2))
    homeless = Caller(ask(PREFILL, SECOND, deadline=clock.now + 5)).submit(pool)
    assert pool.snapshot().unplaced == 1
    on_b.lease.release()
    assert homeless.lease.backend_id == "b"
    assert on_a.lease.backend_id == "a"


def test_a_slot_less_class_does_not_hold_up_the_other(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(gate=0.5, prefill={"max_requests": 1}))
    on_prefill = Caller(ask(PREFILL, 100)).submit(pool)
    stuck = [Caller(ask(PREFILL, SECOND, priority=Priority.HIGH)).submit(pool) for _ in range(100)]
    first = Caller(ask(DECODE, SECOND)).submit(pool)
    second = Caller(ask(DECODE, SECOND)).submit(pool)
    first.lease.first_token()
    assert second.leases
    assert all(caller.waits for caller in stuck)
    on_prefill.lease.release()


def test_tickets_of_a_backend_that_leaves_go_elsewhere(clock: VirtualClock) -> None:
    policy = Scripted()
    pool = make_pool(clock, "ab", GATE, policy)
    policy.answer = "a"
    Caller(ask(tokens=SECOND)).submit(pool)
    waiting = Caller(ask(tokens=SECOND)).submit(pool)
    a, b = pool.backends
    policy.answer = None
    pool.set_backends([b])
    assert waiting.lease.backend_id == "b"
    assert a.held_seconds() == 0.0


def test_a_policy_that_always_changes_its_mind_ends_nothing(clock: VirtualClock) -> None:
    class Fickle(Scripted):
        def choose(self, request, candidates):
            self.answer = "b" if self.answer == "a" else "a"
            return super().choose(request, candidates)

    pool = make_pool(clock, "ab", GATE, Fickle())
    callers = [Caller(ask(tokens=SECOND)).submit(pool) for _ in range(200)]
    for _ in range(100):
        clock.advance(0.2)
        for caller in callers:
            for lease in caller.leases:
                lease.release()
    assert all(caller.leases for caller in callers)


def test_the_gate_feeds_a_backend_whose_first_tokens_are_not_seen_as_fast_as_assumed(
    clock: VirtualClock,
) -> None:
    pool = make_pool(clock, scheduling=limits(gate=0.5, decode={"max_wait": 600.0}))
    callers = [Caller(ask(tokens=SECOND // 2)).submit(pool) for _ in range(100)]
    for _ in range(40 * 20):
        clock.advance(0.05)
        for caller in callers:
            if caller.leases and clock.now >= caller.lease.prefill_due:
                caller.lease.first_token()
        pool.expire()
    assert sum(len(caller.leases) for caller in callers) >= 0.95 * 40 / 0.5


def test_pools_that_share_a_backend_see_what_the_other_holds(clock: VirtualClock) -> None:
    load = BackendLoad("a")
    one, other = (Pool(name, "unified", build("least_load", {}), GATE, clock) for name in "xy")
    for pool in (one, other):
        pool.set_backends([load])
    Caller(ask(tokens=SECOND)).submit(one)
    waiting = Caller(ask(tokens=SECOND)).submit(one)
    assert load.queue_seconds(ask(now=clock.now)) > 2.0
    waiting.cancel(one)
    assert load.queue_seconds(ask(now=clock.now)) < 1.5


def test_one_that_is_looked_at_does_not_stand_in_its_own_way(clock: VirtualClock) -> None:
    queues: list[float] = []

    class Watching(Scripted):
        def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
            queues.append(candidates[0].queue_seconds(request))
            return super().choose(request, candidates)

    pool = make_pool(clock, "a", GATE, Watching())
    running = Caller(ask(tokens=SECOND)).submit(pool)
    waiting = [Caller(ask(tokens=tokens * SECOND)).submit(pool) for tokens in (2, 3)]
    running.lease.first_token()
    assert waiting[0].leases
    # on arrival what is pending and what stands there; at its turn only what stands there beside it
    assert queues == pytest.approx([0.0, 1.0, 3.0, 3.0])


def test_one_that_leaves_while_it_is_passed_stays_away(clock: VirtualClock) -> None:
    scheduling = limits(prefill={"max_uncached_tokens": 1000})
    pool = make_pool(clock, scheduling=scheduling)
    running = [Caller(ask(PREFILL, 500)).submit(pool) for _ in range(2)]
    large = Caller(ask(PREFILL, 900)).submit(pool)
    small = Caller(ask(PREFILL, 400))
    small.ticket.on_grant = lambda lease: (small.granted(lease), large.cancel(pool))
    small.submit(pool)
    running[0].lease.first_token()
    assert small.leases
    assert pool.is_empty()
    assert pool.snapshot().unplaced == 0
