import logging

import pytest

from gateway.config import LengthRange
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import RefusalReason
from gateway.types import Chain, Match, Reason, Role
from policies.registry import build
from tests.scheduling.virtual import (
    DECODE,
    ONE_SLOT,
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


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


# granting


def test_grants_at_once_when_there_is_room(clock: VirtualClock) -> None:
    pool = make_pool(clock)
    lease = Caller(ask(tokens=70)).submit(pool).lease
    assert (lease.backend_id, lease.uncached_tokens, lease.queue_seconds) == ("a", 70, 0.0)
    assert lease.granted_at == clock.now
    assert pool.granted(DECODE) == 1
    assert pool.is_empty()


def test_charges_the_tokens_that_are_uncached_at_the_chosen_backend(clock: VirtualClock) -> None:
    policy = Scripted()
    pool = make_pool(clock, "ab", policy=policy)
    request = ask(PREFILL, 5000, Match({"b": 40}, {"b": 4000.0}))
    policy.answer = "a"
    assert Caller(request).submit(pool).lease.uncached_tokens == 5000
    policy.answer = "b"
    assert Caller(request).submit(pool).lease.uncached_tokens == 1000


def test_Q01_a_slot_is_held_for_the_whole_response(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    streaming = Caller(ask()).submit(pool)
    clock.advance(0.4)
    second = Caller(ask()).submit(pool)
    streaming.lease.first_token()
    clock.advance(2.1)
    third = Caller(ask()).submit(pool)
    pool.expire()
    assert second.waits
    assert third.waits
    clock.advance(3.5)
    streaming.lease.release()
    assert second.lease.queue_seconds == pytest.approx(5.6)
    assert third.waits


def test_the_token_budget_holds_until_the_first_token(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(prefill={"max_uncached_tokens": 10_000}))
    first = Caller(ask(PREFILL, 6000)).submit(pool)
    fits_exactly = Caller(ask(PREFILL, 4000)).submit(pool)
    waits = Caller(ask(PREFILL, 6000)).submit(pool)
    assert fits_exactly.leases
    assert waits.waits
    first.lease.first_token()
    assert waits.leases


def test_one_request_beyond_the_budget_goes_when_it_is_alone(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(prefill={"max_uncached_tokens": 10_000}))
    small = Caller(ask(PREFILL, 3000)).submit(pool)
    huge = Caller(ask(PREFILL, 50_000)).submit(pool)
    assert huge.waits
    small.lease.first_token()
    assert huge.leases
    after = Caller(ask(PREFILL, 3000)).submit(pool)
    assert after.waits
    huge.lease.first_token()
    assert after.leases


def test_a_hit_is_charged_for_what_it_misses_only(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(decode={"max_uncached_tokens": 1000}))
    hit = ask(tokens=100_000, match=Match({"a": 999}, {"a": 99_900.0}))
    assert [bool(Caller(hit).submit(pool).leases) for _ in range(11)] == [True] * 10 + [False]


def test_the_policy_is_offered_only_backends_with_room(clock: VirtualClock) -> None:
    policy = Scripted()
    pool = make_pool(clock, "abc", ONE_SLOT, policy)
    for _ in range(3):
        Caller(ask()).submit(pool)
    assert policy.offers == [["a", "b", "c"], ["b", "c"], ["c"]]


def test_Q14_choosing_and_reserving_is_one_step(clock: VirtualClock) -> None:
    pool = make_pool(clock, "ab", ONE_SLOT)
    for _ in range(50):
        pair = [Caller(ask()).submit(pool) for _ in range(2)]
        assert {caller.lease.backend_id for caller in pair} == {"a", "b"}
        for caller in pair:
            caller.lease.release()


# order


def test_what_fits_passes_what_does_not(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(decode={"max_uncached_tokens": 1000}))
    Caller(ask(tokens=800)).submit(pool)
    large = Caller(ask(tokens=900)).submit(pool)
    fits = Caller(ask(tokens=100)).submit(pool)
    assert large.waits
    assert fits.leases


def test_what_is_overdue_is_passed_no_longer(clock: VirtualClock) -> None:
    """Else a large prompt would wait for ever for room that small ones always take."""
    pool = make_pool(clock, scheduling=limits(decode={"max_uncached_tokens": 1000}))
    first = Caller(ask(tokens=500)).submit(pool)
    second = Caller(ask(tokens=500)).submit(pool)
    large = Caller(ask(tokens=900, deadline=clock.now + 2.0)).submit(pool)
    clock.advance(3.0)
    first.lease.release()
    small = Caller(ask(tokens=100)).submit(pool)
    other_class = Caller(ask(PREFILL, tokens=100)).submit(pool)
    assert small.waits
    assert other_class.leases
    second.lease.release()
    assert large.leases
    pool.expire()
    assert small.leases


def test_one_that_waits_for_its_range_holds_up_only_long_ones(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(ranges=(LengthRange(min_tokens=50, max_requests=2),)))
    running = [Caller(ask(PREFILL, 60)).submit(pool) for _ in range(2)]
    overdue = Caller(ask(PREFILL, 60, deadline=clock.now + 2.0)).submit(pool)
    clock.advance(3.0)
    pool.expire()
    short = Caller(ask(PREFILL, 40)).submit(pool)
    hit = Caller(ask(DECODE, 50)).submit(pool)
    assert short.leases
    assert hit.waits
    running[0].lease.release()
    assert overdue.leases
    assert hit.waits


def test_a_reservation_ends_with_its_ticket(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(decode={"max_uncached_tokens": 1000}))
    running = [Caller(ask(tokens=500)).submit(pool) for _ in range(2)]
    large = Caller(ask(tokens=900, deadline=clock.now + 2.0)).submit(pool)
    clock.advance(3.0)
    running[0].lease.release()
    small = Caller(ask(tokens=100)).submit(pool)
    assert small.waits
    large.cancel(pool)
    pool.expire()
    assert small.leases


def test_a_class_that_is_stuck_does_not_hold_up_the_other(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    Caller(ask(DECODE)).submit(pool)
    stuck = Caller(ask(DECODE)).submit(pool)
    prefill = Caller(ask(PREFILL, 5000)).submit(pool)
    waiting = Caller(ask(PREFILL, 5000)).submit(pool)
    assert prefill.leases
    prefill.lease.release()
    assert waiting.leases
    assert stuck.waits


def release_order(clock: VirtualClock, share: float, each: int = 20) -> str:
    """The order in which two full queues go when a backend comes back."""
    pool = make_pool(clock, scheduling=limits(share=share))
    loads = pool.backends
    blocked = limits(prefill={"max_requests": 1}, decode={"max_requests": 1}, share=share)
    pool.scheduling = blocked
    holders = [Caller(ask(PREFILL, 100)).submit(pool), Caller(ask(DECODE)).submit(pool)]
    order: list[str] = []
    for _ in range(each):
        for work_class, letter in ((PREFILL, "p"), (DECODE, "d")):
            caller = Caller(ask(work_class))
            caller.ticket.on_grant = lambda lease, letter=letter: order.append(letter)
            caller.submit(pool)
    assert order == []
    pool.set_backends([])
    for holder in holders:
        holder.lease.release()
    pool.scheduling = limits(share=share)
    pool.set_backends(loads)
    return "".join(order)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.0, "d" * 20 + "p" * 20),
        (0.2, "ddddp" * 5 + "p" * 15),
        (0.1, "dddddddddp" * 2 + "dd" + "p" * 18),
        (0.5, "dp" * 20),
        (1.0, "p" * 20 + "d" * 20),
    ],
)
def test_decode_goes_first_and_prefill_gets_its_share(
    clock: VirtualClock, share: float, expected: str
) -> None:
    assert release_order(clock, share) == expected


# waiting and leaving


def test_Q05_the_bound_counts_all_who_wait(clock: VirtualClock) -> None:
    scheduling = limits(decode={"max_requests": 1, "max_waiting": 10})
    pool = make_pool(clock, scheduling=scheduling)
    callers = [Caller(ask()).submit(pool) for _ in range(100)]
    assert sum(bool(caller.leases) for caller in callers) == 1
    assert sum(caller.waits for caller in callers) == 10
    refused = [caller.refusal for caller in callers if caller.refusals]
    assert len(refused) == 89
    assert {refusal.reason for refusal in refused} == {RefusalReason.QUEUE_FULL}
    assert all(1 <= refusal.retry_after <= 60 for refusal in refused)
    assert pool.refused(DECODE)[RefusalReason.QUEUE_FULL] == 89
    assert pool.depth(DECODE) == 10


def test_no_queue_means_now_or_never(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(decode={"max_requests": 1, "max_waiting": 0}))
    assert Caller(ask()).submit(pool).leases
    assert Caller(ask()).submit(pool).refusal.reason is RefusalReason.QUEUE_FULL


def test_Q02_expired_waiters_leave_the_queue(clock: VirtualClock) -> None:
    scheduling = limits(decode={"max_requests": 1, "max_waiting": 5, "max_wait": 1.0})
    pool = make_pool(clock, scheduling=scheduling)
    Caller(ask()).submit(pool)
    first = [Caller(ask()).submit(pool) for _ in range(5)]
    clock.advance(0.99)
    pool.expire()
    assert all(caller.waits for caller in first)
    clock.advance(0.01)
    pool.expire()
    assert {caller.refusal.reason for caller in first} == {RefusalReason.EXPIRED}
    assert pool.depth(DECODE) == 0
    clock.advance(1.0)
    second = [Caller(ask()).submit(pool) for _ in range(5)]
    assert all(caller.waits for caller in second)


def test_Q02_places_of_the_expired_are_free_before_any_timer_runs(clock: VirtualClock) -> None:
    scheduling = limits(decode={"max_requests": 1, "max_waiting": 1, "max_wait": 1.0})
    pool = make_pool(clock, scheduling=scheduling)
    Caller(ask()).submit(pool)
    overdue = Caller(ask()).submit(pool)
    clock.advance(2.0)
    assert Caller(ask()).submit(pool).waits
    assert overdue.refusal.reason is RefusalReason.EXPIRED


def test_Q04_late_is_late(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(decode={"max_requests": 1, "max_wait": 5.0}))
    running = Caller(ask()).submit(pool)
    late = Caller(ask()).submit(pool)
    clock.advance(4.5)
    in_time = Caller(ask()).submit(pool)
    clock.advance(1.0)
    running.lease.release()
    assert late.leases == []
    assert late.refusal.reason is RefusalReason.EXPIRED
    assert in_time.leases


@pytest.mark.parametrize(("asked", "effective"), [(1.0, 1.0), (30.0, 5.0), (None, 5.0)])
def test_Q08_a_client_can_only_shorten_the_wait(
    clock: VirtualClock, asked: float | None, effective: float
) -> None:
    pool = make_pool(clock, scheduling=limits(decode={"max_requests": 1, "max_wait": 5.0}))
    Caller(ask()).submit(pool)
    caller = Caller(ask(), max_wait=asked).submit(pool)
    clock.advance(effective - 0.01)
    pool.expire()
    assert caller.waits
    clock.advance(0.01)
    pool.expire()
    assert caller.refusal.reason is RefusalReason.EXPIRED


def test_Q08_not_ready_to_wait_is_answered_at_once(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    assert Caller(ask(), max_wait=0.0).submit(pool).leases
    refused = Caller(ask(), max_wait=0.0).submit(pool)
    assert refused.refusal.reason is RefusalReason.EXPIRED
    assert pool.is_empty()


def test_a_client_that_leaves_gives_up_its_place(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    running = Caller(ask()).submit(pool)
    left, stayed = (Caller(ask()).submit(pool) for _ in range(2))
    left.cancel(pool)
    left.cancel(pool)
    running.lease.release()
    assert left.leases == left.refusals == []
    assert stayed.leases
    assert pool.snapshot().queues[DECODE].cancelled == 1


def test_cancelling_a_granted_ticket_changes_nothing(clock: VirtualClock) -> None:
    pool = make_pool(clock)
    caller = Caller(ask()).submit(pool)
    pool.cancel(caller.ticket)
    assert pool.backends[0].in_flight == 1
    assert pool.snapshot().queues[DECODE].cancelled == 0


def test_retry_after_follows_the_pace_at_which_the_queue_drains(clock: VirtualClock) -> None:
    scheduling = limits(decode={"max_requests": 1, "max_waiting": 10, "max_wait": 600.0})
    pool = make_pool(clock, scheduling=scheduling)
    running = Caller(ask()).submit(pool)
    waiting = [Caller(ask()).submit(pool) for _ in range(10)]
    for caller in waiting[:5]:
        clock.advance(2.0)
        running.lease.release()
        running = caller
        Caller(ask()).submit(pool)
    refused = Caller(ask()).submit(pool).refusal
    assert refused.reason is RefusalReason.QUEUE_FULL
    assert refused.retry_after == pytest.approx(20.0)


# what changes from outside


def test_a_ticket_is_matched_again_when_it_is_released(clock: VirtualClock) -> None:
    known = {"match": Match()}

    def rematch(chain: Chain) -> Match:
        assert chain == b"12345678"
        return known["match"]

    pool = make_pool(clock, "ab", ONE_SLOT, "prefix_affinity")
    running = [Caller(ask()).submit(pool) for _ in range(2)]
    caller = Caller(ask(tokens=5000, chain=b"12345678"), rematch=rematch).submit(pool)
    known["match"] = Match({"a": 40}, {"a": 4000.0})
    clock.advance(1.0)
    [on_a] = [caller for caller in running if caller.lease.backend_id == "a"]
    on_a.lease.release()
    assert caller.lease.uncached_tokens == 1000
    assert caller.ticket.request.match is known["match"]
    assert caller.ticket.request.now == clock.now


def test_no_backend_is_refused_at_once_and_busy_ones_are_waited_for(clock: VirtualClock) -> None:
    pool = make_pool(clock, "")
    refused = Caller(ask()).submit(pool).refusal
    assert refused.reason is RefusalReason.NO_BACKEND
    assert 1 <= refused.retry_after <= 60


def test_tickets_outlast_an_absence_of_all_backends(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    running = Caller(ask()).submit(pool)
    caller = Caller(ask()).submit(pool)
    loads = pool.backends
    pool.set_backends([])
    running.lease.release()
    pool.expire()
    assert caller.waits
    pool.set_backends(loads)
    assert caller.leases


def test_leases_count_when_a_backend_comes_back(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    running = Caller(ask()).submit(pool)
    loads = pool.backends
    pool.set_backends([])
    pool.set_backends(loads)
    caller = Caller(ask()).submit(pool)
    assert caller.waits
    running.lease.release()
    assert caller.leases


def test_a_backend_listed_twice_is_an_error(clock: VirtualClock) -> None:
    with pytest.raises(ValueError, match="twice"):
        make_pool(clock, "aa")


def test_a_backend_that_left_no_longer_wakes_the_pool(clock: VirtualClock) -> None:
    policy = Scripted()
    pool = make_pool(clock, "a", ONE_SLOT, policy)
    gone = Caller(ask()).submit(pool)
    pool.set_backends([load_of("b")])
    running, waiting = Caller(ask()).submit(pool), Caller(ask()).submit(pool)
    looks = len(policy.offers)
    gone.lease.release()
    assert len(policy.offers) == looks
    running.lease.release()
    assert waiting.leases


def test_a_raised_limit_takes_effect_at_once(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    Caller(ask()).submit(pool)
    waiting = [Caller(ask()).submit(pool) for _ in range(3)]
    pool.scheduling = limits(decode={"max_requests": 3})
    assert [bool(caller.leases) for caller in waiting] == [True, True, False]


def test_a_lowered_limit_only_holds_back_what_comes(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(decode={"max_requests": 3}))
    running = [Caller(ask()).submit(pool) for _ in range(3)]
    pool.scheduling = ONE_SLOT
    caller = Caller(ask()).submit(pool)
    for holder in running[:2]:
        holder.lease.release()
        assert caller.waits
    running[2].lease.release()
    assert caller.leases


def test_the_policy_can_be_swapped_while_tickets_wait(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    running = Caller(ask()).submit(pool)
    caller = Caller(ask()).submit(pool)
    pool.policy = build("round_robin", {})
    pool.set_backends([*pool.backends, load_of("b")])
    assert caller.lease.decision.reason is Reason.ONLY
    running.lease.release()
    assert Caller(ask()).submit(pool).lease.backend_id == "a"


def test_close_refuses_what_waits_and_what_comes(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    running = Caller(ask()).submit(pool)
    waiting = Caller(ask()).submit(pool)
    pool.close()
    assert waiting.refusal.reason is RefusalReason.SHUTTING_DOWN
    assert Caller(ask()).submit(pool).refusal.reason is RefusalReason.SHUTTING_DOWN
    running.lease.release()
    assert is_clear(pool.backends[0])


def test_pools_that_share_a_backend_share_its_limits(clock: VirtualClock) -> None:
    load = BackendLoad("a")
    pools = []
    for model in ("x", "y"):
        pool = Pool(model, Role.UNIFIED, build("least_load", {}), ONE_SLOT, clock)
        pool.set_backends([load])
        pools.append(pool)
    running = Caller(ask()).submit(pools[0])
    others = [Caller(ask()).submit(pools[1]) for _ in range(2)]
    assert others[0].waits
    running.lease.release()
    assert others[0].leases
    assert load.in_flight == 1


def test_pools_that_share_a_backend_take_turns(clock: VirtualClock) -> None:
    load = BackendLoad("a")
    pools = {model: Pool(model, Role.UNIFIED, Scripted(), ONE_SLOT, clock) for model in "xy"}
    for pool in pools.values():
        pool.set_backends([load])
    order: list[str] = []
    leases: list[Lease] = []
    first = Caller(ask()).submit(pools["x"])
    leases.append(first.lease)
    for _ in range(10):
        for model, pool in pools.items():
            caller = Caller(ask())

            def granted(lease: Lease, model: str = model) -> None:
                order.append(model)
                leases.append(lease)

            caller.ticket.on_grant = granted
            caller.submit(pool)
    while leases:
        leases.pop().release()
    assert "".join(order) in ("xy" * 10, "yx" * 10)


# callbacks and failures


def test_a_lease_given_back_inside_the_callback_passes_on(clock: VirtualClock) -> None:
    """A thousand clients that are gone by the time they are granted do not nest."""
    pool = make_pool(clock, scheduling=ONE_SLOT)
    running = Caller(ask()).submit(pool)
    released = []
    for _ in range(1000):
        caller = Caller(ask())

        def granted(lease: Lease) -> None:
            lease.release()
            released.append(lease)

        caller.ticket.on_grant = granted
        caller.submit(pool)
    running.lease.release()
    assert len(released) == 1000
    assert is_clear(pool.backends[0])
    assert pool.is_empty()


def test_a_callback_may_submit_and_cancel(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    running = Caller(ask()).submit(pool)
    inner, victim = Caller(ask()), Caller(ask())
    outer = Caller(ask())

    def granted(lease: Lease) -> None:
        victim.cancel(pool)
        inner.submit(pool)
        lease.release()

    outer.ticket.on_grant = granted
    outer.submit(pool)
    victim.submit(pool)
    running.lease.release()
    assert victim.leases == []
    assert inner.leases
    assert pool.is_empty()


def test_a_callback_that_raises_loses_no_lease(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=ONE_SLOT)
    running = Caller(ask()).submit(pool)
    broken, next_one = Caller(ask()), Caller(ask())

    def raising(lease: Lease) -> None:
        raise RuntimeError("in the callback")

    broken.ticket.on_grant = raising
    broken.submit(pool)
    next_one.submit(pool)
    with pytest.raises(RuntimeError, match="in the callback"):
        running.lease.release()
    pool.expire()
    assert next_one.leases
    next_one.lease.release()
    assert is_clear(pool.backends[0])


@pytest.mark.parametrize("fault", ["raises", "invents"])
def test_F05_a_broken_policy_fails_its_own_request_only(
    clock: VirtualClock, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    policy = Scripted()
    pool = make_pool(clock, "a", ONE_SLOT, policy)
    running = Caller(ask()).submit(pool)
    waiting = Caller(ask()).submit(pool)
    if fault == "raises":
        policy.error = KeyError("prompt")
    else:
        policy.answer = "elsewhere"
    with caplog.at_level(logging.ERROR):
        running.lease.release()
    assert waiting.refusal.reason is RefusalReason.ROUTING_FAILED
    assert "scripted" in caplog.text
    assert ("prompt" if fault == "raises" else "elsewhere") in caplog.text
    assert Caller(ask()).submit(pool).refusal.status == 500
    assert is_clear(pool.backends[0])


# reading


def test_snapshot(clock: VirtualClock) -> None:
    pool = make_pool(clock, scheduling=limits(gate=0.5, decode={"max_requests": 1}))
    Caller(ask()).submit(pool)
    Caller(ask()).submit(pool)
    Caller(ask(PREFILL, 10_000, tenant="t")).submit(pool)
    Caller(ask(PREFILL, 10_000, tenant="t")).submit(pool)
    clock.advance(0.25)
    snapshot = pool.snapshot()
    assert (snapshot.model, snapshot.role) == ("m", Role.UNIFIED)
    assert snapshot.backends == {"a": 1}
    assert (snapshot.unplaced, snapshot.tenants) == (1, 2)
    decode, prefill = snapshot.queues[DECODE], snapshot.queues[PREFILL]
    assert (decode.waiting, decode.waiting_tokens) == (1, 100)
    assert (decode.oldest_wait, decode.granted) == (0.25, 1)
    assert (prefill.waiting, prefill.waiting_tokens) == (1, 10_000)
    assert pool.oldest_wait(DECODE) == 0.25
