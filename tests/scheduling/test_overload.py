"""Who is refused when there is too much."""

from __future__ import annotations

import pytest

from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import RefusalReason
from gateway.types import Priority
from tests.scheduling.virtual import Caller, VirtualClock, ask, limits, make_pool

SECOND = 10_000
HIGH, NORMAL, LOW = Priority


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def backlog(clock: VirtualClock, pool: Pool, *, pace: float, waiting: int, **facts: object) -> None:
    """Leaves so many seconds of work waiting, after ten that went one each `pace` seconds."""
    running = Caller(ask(tokens=SECOND)).submit(pool)
    first = Caller(ask(tokens=SECOND, **facts)).submit(pool)
    for _ in range(10):
        following = Caller(ask(tokens=SECOND, **facts)).submit(pool)
        clock.advance(pace)
        running.lease.release()
        running, first = first, following
    for _ in range(waiting - 1):
        assert Caller(ask(tokens=SECOND, **facts)).submit(pool).waits


def test_what_would_wait_longer_than_it_may_is_refused_at_once(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(gate=0.5, decode={"max_wait": 20.0}))
    backlog(clock, pool, pace=1.0, waiting=18)
    assert Caller(ask(tokens=SECOND)).submit(pool).waits
    refusals = [Caller(ask(tokens=SECOND)).submit(pool) for _ in range(9)]
    [late] = [caller.refusal for caller in refusals if caller.refusals][:1]
    assert late.reason is RefusalReason.OVERLOAD
    assert late.status == 429
    assert late.retry_after == 1.0
    shorter = Caller(ask(tokens=SECOND), max_wait=5.0).submit(pool).refusal
    assert shorter.reason is RefusalReason.OVERLOAD
    assert shorter.retry_after == pytest.approx(15.0, abs=2.0)


def test_rates_that_are_assumed_too_low_refuse_nobody(clock: VirtualClock) -> None:
    """The engine is ten times as fast as assumed: the pace of grants says so."""
    pool = make_pool(clock, scheduling=limits(gate=0.5, decode={"max_wait": 20.0}))
    backlog(clock, pool, pace=0.1, waiting=100)
    assert pool.refused(ask().work_class)[RefusalReason.OVERLOAD] == 0


def test_a_slow_pace_alone_refuses_nobody(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(gate=0.5, decode={"max_wait": 20.0}))
    backlog(clock, pool, pace=8.0, waiting=1)
    for _ in range(5):
        assert Caller(ask(tokens=10)).submit(pool).waits


def test_only_those_that_would_be_late_are_refused(clock: VirtualClock) -> None:
    """Behind a flooder's and a lower priority's backlog, others still come in time."""
    pool = make_pool(clock, scheduling=limits(gate=0.5, decode={"max_wait": 20.0}))
    backlog(clock, pool, pace=1.0, waiting=19, tenant="flooder")
    flooder = [Caller(ask(tokens=SECOND, tenant="flooder")).submit(pool) for _ in range(9)]
    assert flooder[-1].refusal.reason is RefusalReason.OVERLOAD
    assert Caller(ask(tokens=SECOND, tenant="normal")).submit(pool).waits
    assert Caller(ask(tokens=SECOND, tenant="flooder", priority=HIGH)).submit(pool).waits
    low = Caller(ask(tokens=SECOND, tenant="flooder", priority=LOW)).submit(pool)
    assert low.refusal.reason is RefusalReason.OVERLOAD


def test_the_shed_factor_refuses_what_would_miss_its_target_by_more(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(gate=0.5, shed_factor=1.5))
    backlog(clock, pool, pace=1.0, waiting=10, priority=HIGH)

    def ask_within(target: float) -> Caller:
        return Caller(ask(tokens=100, deadline=clock.now + target)).submit(pool)

    missed = ask_within(2.0)
    assert missed.refusal.reason is RefusalReason.OVERLOAD
    made = ask_within(10.0)
    assert made.waits


def test_without_the_factor_late_ones_wait(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(gate=0.5))
    backlog(clock, pool, pace=1.0, waiting=10)
    assert Caller(ask(tokens=100, deadline=clock.now + 2.0)).submit(pool).waits


def test_a_higher_priority_takes_the_place_of_a_lower_one(clock: VirtualClock) -> None:
    scheduling = limits(decode={"max_requests": 1, "max_waiting": 2})
    pool = make_pool(clock, scheduling=scheduling)
    running = Caller(ask()).submit(pool)
    low, normal = (Caller(ask(priority=rank)).submit(pool) for rank in (LOW, NORMAL))
    high = Caller(ask(priority=HIGH)).submit(pool)
    assert low.refusal.reason is RefusalReason.DISPLACED
    assert 1 <= low.refusal.retry_after <= 60
    assert Caller(ask(priority=LOW)).submit(pool).refusal.reason is RefusalReason.QUEUE_FULL
    running.lease.release()
    assert high.leases
    high.lease.release()
    assert normal.leases


def test_a_displaced_one_may_come_again_from_its_callback(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(decode={"max_requests": 1, "max_waiting": 1}))
    Caller(ask()).submit(pool)
    low, again = Caller(ask(priority=LOW)), Caller(ask(priority=LOW))
    low.ticket.on_refuse = lambda refusal: (low.refusals.append(refusal), again.submit(pool))
    low.submit(pool)
    high = Caller(ask(priority=HIGH)).submit(pool)
    assert high.waits
    assert low.refusal.reason is RefusalReason.DISPLACED
    assert again.refusal.reason is RefusalReason.QUEUE_FULL
    assert pool.depth(ask().work_class) == 1
