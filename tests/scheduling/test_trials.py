"""Backends that are not trusted: they take as many requests as there are permits."""

from __future__ import annotations

import pytest

from gateway.fleet.breaker import Trials
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from policies.registry import names
from tests.scheduling.virtual import DECODE, Caller, VirtualClock, ask, make_pool


def put_on_trial(pool: Pool, id: str, permits: int = 1) -> Trials:
    [load] = [load for load in pool.backends if load.id == id]
    load.trials = Trials(permits)
    pool.set_backends(pool.backends)
    return load.trials


def send(pool: Pool, **options: object) -> Caller:
    return Caller(ask(DECODE, 100), **options).submit(pool)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.mark.parametrize("policy", sorted(names()))
def test_a_trial_comes_before_any_policy(clock: VirtualClock, policy: str) -> None:
    pool = make_pool(clock, "abc", policy=policy)
    put_on_trial(pool, "b", permits=2)
    callers = [send(pool) for _ in range(6)]
    homes = [caller.lease.backend_id for caller in callers]
    assert homes[:2] == ["b", "b"]
    assert "b" not in homes[2:]


def test_a_permit_comes_back_with_its_lease(clock: VirtualClock) -> None:
    pool = make_pool(clock, "ab")
    trials = put_on_trial(pool, "b")
    for _ in range(3):
        lease = send(pool).lease
        assert lease.backend_id == "b"
        assert lease.trial is trials
        assert not trials.free
        assert send(pool).lease.backend_id == "a"
        lease.release()
        lease.release()
        assert trials.out == 0


def test_what_was_there_before_is_no_trial(clock: VirtualClock) -> None:
    pool = make_pool(clock, "b")
    old = [send(pool).lease for _ in range(5)]
    trials = put_on_trial(pool, "b")
    assert send(pool).lease.trial is trials
    for lease in old:
        assert lease.trial is None
        lease.release()
    assert trials.out == 1


def test_permits_of_an_earlier_round_do_not_count(clock: VirtualClock) -> None:
    pool = make_pool(clock, "b")
    put_on_trial(pool, "b")
    lost = send(pool).lease
    trials = put_on_trial(pool, "b")
    assert send(pool).lease.trial is trials
    lost.release()
    assert trials.out == 1


def test_with_nobody_else_requests_wait_for_a_permit(clock: VirtualClock) -> None:
    pool = make_pool(clock, "b")
    put_on_trial(pool, "b")
    lease = send(pool).lease
    waiting = [send(pool) for _ in range(3)]
    assert all(caller.waits for caller in waiting)
    clock.advance(0.1)
    pool.expire()
    assert all(caller.waits for caller in waiting)
    lease.release()
    assert [caller.waits for caller in waiting] == [False, True, True]
    # trusted again, it takes them all
    load: BackendLoad = pool.backends[0]
    load.trials = None
    pool.set_backends(pool.backends)
    assert not any(caller.waits for caller in waiting)


def test_what_failed_elsewhere_is_put_to_it_last(clock: VirtualClock) -> None:
    pool = make_pool(clock, "abc", policy="least_load")
    put_on_trial(pool, "b")
    for _ in range(3):
        lease = send(pool, avoid=("a",)).lease
        assert lease.backend_id == "c"
        lease.release()
    assert send(pool, avoid=("a", "c")).lease.backend_id == "b"
