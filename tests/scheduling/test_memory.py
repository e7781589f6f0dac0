"""What the KV cache of a backend has room for, and who waits for it."""

from __future__ import annotations

from itertools import permutations

import pytest
from msgspec.structs import replace

from gateway.scheduling.classify import appraise
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import Ticket
from gateway.types import Match, Priority, WorkClass
from policies.base import RouteRequest
from tests.scheduling.virtual import (
    DECODE,
    PREFILL,
    Caller,
    Scripted,
    VirtualClock,
    ask,
    is_clear,
    limits,
    load_of,
    make_pool,
)

CHAIN = b"block..1block..2"
CAPACITY = 10_000
"""Of which 9,500 tokens are for prompts."""


def hit(tokens: int, matched: int, id: str = "a", **facts: object) -> RouteRequest:
    """A prompt whose two blocks one backend holds."""
    match = Match({id: 2}, {id: float(matched)})
    return ask(tokens=tokens, match=match, chain=CHAIN, **facts)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def small_pool(clock: VirtualClock, ids: str = "a", **options: object) -> Pool:
    policy = options.pop("policy", "least_load")
    scheduling = limits(**{"gate": 5.0, **options})
    pool = make_pool(clock, ids, scheduling, policy)
    for load in pool.backends:
        load.capacity_tokens = CAPACITY
    return pool


# what is counted


@pytest.mark.parametrize("order", list(permutations(range(4))))
def test_what_several_share_counts_once(clock: VirtualClock, order: tuple[int, ...]) -> None:
    pool = small_pool(clock)
    [load] = pool.backends
    requests = [hit(1100, 1000), hit(1200, 1000), ask(tokens=500), ask(tokens=300)]
    leases = [Caller(request).submit(pool).lease for request in requests]
    assert load.memory_tokens == 1000 + 100 + 200 + 500 + 300
    assert load.context_tokens == 3100
    for place in order:
        leases[place].first_token()
        leases[place].release()
    assert is_clear(load)


def test_sharers_that_were_matched_differently_leave_nothing(clock: VirtualClock) -> None:
    """Tokens of a match are estimates, and change while requests are in flight."""
    pool = small_pool(clock)
    leases = [Caller(hit(1000, matched)).submit(pool).lease for matched in (900, 960, 1200)]
    assert pool.backends[0].memory_tokens == 1000 + 40 + 0
    for lease in leases:
        lease.release()
    assert is_clear(pool.backends[0])


def test_with_a_newcomer_it_is_what_it_does_not_share(clock: VirtualClock) -> None:
    pool = small_pool(clock)
    [load] = pool.backends
    newcomer = hit(1500, 1000)
    assert load.memory_with(newcomer) == 1500
    Caller(hit(1100, 1000)).submit(pool)
    assert load.memory_with(newcomer) == 1100 + 500
    assert load.memory_with(ask(tokens=1500)) == 1100 + 1500


def test_a_hit_is_charged_its_memory(clock: VirtualClock) -> None:
    """99% of 100,000 tokens are cached: little work, but all of it has to stay in memory."""
    loads = [load_of("a"), load_of("b")]
    pool = small_pool(clock, "", policy="prefix_affinity")
    pool.set_backends(loads)
    request = appraise(replace(hit(100_000, 99_000, "b"), now=clock.now), loads, pool.scheduling)
    lease = Caller(request).submit(pool).lease
    assert request.work_class is DECODE
    assert lease.backend_id == "b"
    assert lease.prefill_seconds == pytest.approx(0.1)
    assert (loads[1].pending_tokens, loads[1].memory_tokens) == (1000, 100_000)


# who waits


def test_what_does_not_fit_waits_and_what_fits_passes_it(clock: VirtualClock) -> None:
    pool = small_pool(clock)
    running = Caller(ask(tokens=9000)).submit(pool)
    large = Caller(ask(tokens=501)).submit(pool)
    assert large.waits
    assert Caller(ask(tokens=500)).submit(pool).leases
    running.lease.first_token()
    pool.expire()
    assert large.waits
    running.lease.release()
    assert large.leases


def test_what_shares_its_prefix_with_others_fits(clock: VirtualClock) -> None:
    pool = small_pool(clock)
    Caller(hit(9000, 8900)).submit(pool)
    assert Caller(ask(tokens=9000)).submit(pool).waits
    assert Caller(hit(9000, 8900)).submit(pool).leases


def test_an_idle_backend_takes_any_size(clock: VirtualClock) -> None:
    pool = small_pool(clock)
    assert Caller(ask(tokens=5 * CAPACITY)).submit(pool).leases


def test_without_a_gate_memory_is_the_engines_business(clock: VirtualClock) -> None:
    pool = small_pool(clock, gate=None)
    assert all(Caller(ask(tokens=9000)).submit(pool).leases for _ in range(3))


def test_a_retry_goes_where_there_is_memory(clock: VirtualClock) -> None:
    pool = small_pool(clock, "ab", policy=Scripted())
    Caller(ask(tokens=9000)).submit(pool)
    assert Caller(ask(tokens=9000), max_wait=0.0).submit(pool).lease.backend_id == "b"
    assert Caller(ask(tokens=9000), max_wait=0.0).submit(pool).refusals


# for how long


@pytest.mark.parametrize("priority", list(Priority))
@pytest.mark.parametrize("work_class", [DECODE, PREFILL])
@pytest.mark.parametrize("tokens", [9000, 5 * CAPACITY])
def test_when_half_of_its_time_is_over_it_is_passed_no_longer(
    clock: VirtualClock, priority: Priority, work_class: WorkClass, tokens: int
) -> None:
    """By nobody, whatever its class or priority: else there would never be room enough."""
    pool = small_pool(clock, prefill={"max_wait": 10.0})
    running = [Caller(ask(tokens=1000)).submit(pool)]
    large = Caller(ask(PREFILL, tokens)).submit(pool)
    waiting: list[Caller] = []
    for _ in range(16):
        clock.advance(0.5)
        pool.expire()
        request = ask(work_class, 1000, priority=priority)
        small = Caller(request).submit(pool)
        (running if small.leases else waiting).append(small)
        if len(running) > 1:
            running.pop(0).lease.release()
    assert len(waiting) == 7
    [last] = running
    last.lease.release()
    assert large.leases
    large.lease.release()
    assert all(caller.leases for caller in waiting)


def test_one_that_has_a_backend_kept_for_it_is_not_lured_away(clock: VirtualClock) -> None:
    """The policy prefers another one, which is full."""
    policy = Scripted()
    pool = small_pool(clock, "ba", policy=policy, decode={"max_wait": 2.0})
    running = []
    for policy.answer in "ab":
        running.append(Caller(ask(tokens=5000)).submit(pool))
    policy.answer = "a"
    large = Caller(ask(tokens=9000)).submit(pool)
    clock.advance(1.1)
    pool.expire()
    policy.answer = None
    assert Caller(ask(tokens=4000)).submit(pool).lease.backend_id == "b"
    running[0].lease.release()
    assert large.lease.backend_id == "a"


def test_what_is_kept_for_one_that_could_go_is_not_taken_either(clock: VirtualClock) -> None:
    """It may still be held for the streams' sake."""
    pool = small_pool(clock)
    [load], placer = pool.backends, pool._placer
    Caller(ask(tokens=400)).submit(pool)
    holder, small, smaller = (Ticket(ask(tokens=n), print, print) for n in (9000, 200, 100))
    placer.reserve(load, holder)
    assert placer.fits(load, holder)
    assert not placer.fits(load, small)
    assert placer.fits(load, smaller)
    placer.release(holder)
    assert placer.fits(load, small)


def test_who_changes_backends_goes_past_those_that_are_held_there(clock: VirtualClock) -> None:
    policy = Scripted()
    pool = small_pool(clock, "ab", policy=policy, gate=0.05)
    policy.answer = "b"
    Caller(ask(tokens=9000)).submit(pool).lease.first_token()
    held = Caller(ask(tokens=2000)).submit(pool)
    policy.answer = "a"
    Caller(ask(tokens=1000)).submit(pool)
    changes = Caller(ask(tokens=100)).submit(pool)
    clock.advance(0.06)
    policy.answer = "b"
    pool.expire()
    assert changes.lease.backend_id == "b"
    assert held.waits


def test_nothing_is_kept_for_one_that_must_not_go_there(clock: VirtualClock) -> None:
    pool = small_pool(clock, "a")
    lost = Caller(ask(deadline=clock.now + 1.0), avoid=("a",)).submit(pool)
    clock.advance(2.0)
    pool.expire()
    assert lost.waits
    assert lost.ticket.reserved is None
    assert Caller(ask()).submit(pool).leases


def test_many_that_fit_are_not_stuck_behind_many_that_do_not(clock: VirtualClock) -> None:
    """The looks for one backend are bounded, and one that is kept for a ticket asks it first."""
    pool = small_pool(clock)
    running = Caller(ask(tokens=9000)).submit(pool)
    stuck = [
        Caller(ask(tokens=9000, priority=Priority.HIGH)).submit(pool).ticket for _ in range(40)
    ]
    overdue = Caller(ask(tokens=9000, priority=Priority.LOW)).submit(pool)
    pool._placer.reserve(pool.backends[0], overdue.ticket)
    running.lease.release()
    assert overdue.leases
    assert len([ticket for ticket in stuck if ticket.line is not None]) == 40


def test_pools_that_share_a_backend_share_its_memory(clock: VirtualClock) -> None:
    load = BackendLoad("a", capacity_tokens=CAPACITY)
    one, other = small_pool(clock), small_pool(clock)
    for pool in (one, other):
        pool.set_backends([load])
    running = Caller(ask(tokens=9000)).submit(one)
    waiting = Caller(ask(tokens=9000)).submit(other)
    assert waiting.waits
    running.lease.release()
    assert waiting.leases
