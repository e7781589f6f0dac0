"""The stated bounds of who waits for whom, with pool and gate working together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import PriorityShares, Tenants
from gateway.scheduling.lane import SECOND_DEADLINE, second_deadline
from gateway.scheduling.line import TENANTS_ASKED
from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import RefusalReason
from gateway.types import Priority, WorkClass
from policies.base import RouteRequest
from tests.scheduling.virtual import (
    DECODE,
    PREFILL,
    Caller,
    VirtualClock,
    ask,
    limits,
    make_pool,
)

SECOND = 10_000
HIGH, NORMAL, LOW = Priority
PLENTY = {"max_waiting": 100_000, "max_wait": 80_000.0, "max_waiting_tokens": 10**12}


def gated(**options: object) -> Pool:
    clock = VirtualClock()
    scheduling = limits(gate=1e-6, prefill=PLENTY, decode=PLENTY, **options)
    return make_pool(clock, scheduling=scheduling)


def releases(pool: Pool, count: int, sources: Sequence[Callable[[], RouteRequest]]) -> list[Caller]:
    """What goes, in order, when each source always has something waiting and one goes at a
    time."""
    gone: list[Caller] = []

    def submit(source: Callable[[], RouteRequest]) -> None:
        caller = Caller(source())

        def granted(lease: object) -> None:
            caller.leases.append(lease)
            gone.append(caller)
            submit(source)

        caller.ticket.on_grant = granted
        caller.submit(pool)

    running = Caller(ask(tokens=1)).submit(pool).lease
    for source in sources:
        for _ in range(3):
            submit(source)
    for turn in range(count):
        running.first_token()
        running.release()
        running = gone[turn].lease
    return gone


def tenants(callers: Sequence[Caller]) -> Counter[str]:
    return Counter(caller.ticket.request.tenant for caller in callers)


@pytest.mark.parametrize("high_has", [(DECODE,), (DECODE, PREFILL)])
def test_every_kind_gets_the_product_of_its_shares(high_has: tuple[str, ...]) -> None:
    """Even where shares of one half, one in the other, could fall into step."""
    pool = gated(share=0.5, priorities=PriorityShares(normal=0.5, low=0.1))
    kinds = [(priority, c) for priority in (NORMAL, LOW) for c in (DECODE, PREFILL)]
    kinds += [(HIGH, c) for c in (DECODE, PREFILL) if c in high_has]

    def source(priority: Priority, work_class: object) -> Callable[[], RouteRequest]:
        name = f"{priority} {work_class}"
        return lambda: ask(work_class, 100, tenant=name, priority=priority)

    count = 1000
    gone = tenants(releases(pool, count, [source(*kind) for kind in kinds]))
    assert gone["normal decode"] >= 0.25 * count - 4
    assert gone["normal prefill"] >= 0.25 * count - 4
    assert gone["low decode"] >= 0.05 * count - 4
    assert gone["low prefill"] >= 0.05 * count - 4
    high = sum(gone[f"high {work_class}"] for work_class in high_has)
    assert high >= 0.4 * count - 4


def test_late_ones_wait_for_those_in_time_until_their_second_deadline() -> None:
    """While two more come each second than can go, all of them in time."""
    clock = VirtualClock()
    pool = make_pool(clock, scheduling=limits(gate=1e-6, prefill=PLENTY, decode=PLENTY))
    running = Caller(ask(tokens=SECOND)).submit(pool)
    late = Caller(ask(tokens=SECOND, deadline=clock.now + 10.0)).submit(pool)
    clock.advance(9.5)
    gone: list[Caller] = []
    waiting: list[Caller] = []
    while not late.leases:
        callers = [Caller(ask(tokens=SECOND, deadline=clock.now + 20.0)) for _ in range(2)]
        for caller in callers:
            caller.submit(pool)
        waiting += callers
        clock.advance(1.0)
        running.lease.release()
        [running] = [caller for caller in (late, *waiting) if caller.leases and caller not in gone]
        gone.append(running)
        assert clock.now < 1200.0
    assert len(gone) > 10
    assert all(caller.ticket.arrived <= second_deadline(late.ticket) for caller in gone)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), quantum=st.sampled_from([0.5, 1.0, 4.0]))
def test_two_tenants_with_a_backlog_get_the_same_service(seed: int, quantum: float) -> None:
    """At most two quanta and two of the largest requests apart, whatever they ask for."""
    random = Random(seed)
    pool = gated(tenants=Tenants(quantum=quantum))

    def source(tenant: str, least: int, most: int) -> Callable[[], RouteRequest]:
        return lambda: ask(
            tokens=random.randint(least, most), tenant=tenant, deadline=random.uniform(1e6, 2e6)
        )

    sources = [source("small", 100, 2000), source("large", 5000, 20_000)]
    served = {"small": 0.0, "large": 0.0}
    for caller in releases(pool, 400, sources):
        # of the decode that was charged with the prefill nothing is used
        served[caller.ticket.request.tenant] += caller.lease.prefill_seconds
        decode = 300 * 0.01
        assert abs(served["small"] - served["large"]) <= 2 * quantum + 2 * (2.0 + decode)


def test_of_very_many_tenants_each_gets_its_turn() -> None:
    pool = gated()
    names = [f"tenant {number}" for number in range(2 * TENANTS_ASKED + 20)]

    def source(tenant: str) -> Callable[[], RouteRequest]:
        return lambda: ask(tokens=1000, tenant=tenant)

    served = tenants(releases(pool, 10 * len(names), [source(name) for name in names]))
    assert min(served[name] for name in names) >= 5
    assert max(served.values()) <= 20


def test_a_tenants_turn_goes_before_its_class() -> None:
    """One that asks for long prompts is not put behind all that others ask for."""
    pool = gated(share=0.0)

    def source(tenant: str, work_class: WorkClass) -> Callable[[], RouteRequest]:
        return lambda: ask(work_class, 10_000, tenant=tenant)

    served = tenants(releases(pool, 100, [source("long", PREFILL), source("short", DECODE)]))
    assert served["long"] >= 45


def test_a_flooder_does_not_harm_nine_normal_tenants() -> None:
    """A hundred times their traffic, and more than the backend can take: only the flooder waits
    and only the flooder is refused."""
    clock = VirtualClock()
    scheduling = limits(gate=0.5, decode={"max_waiting": 100, "max_wait": 30.0})
    pool = make_pool(clock, scheduling=scheduling)
    sent: list[tuple[str, Caller]] = []
    for tick in range(1200):
        clock.advance(0.1)
        names = ["flooder"] * 5
        if tick % 10 == 0:
            names.append(f"normal {tick // 10 % 9}")
        for name in names:
            request = ask(tokens=2000, tenant=name, deadline=clock.now + 2.0, now=clock.now)
            sent.append((name, Caller(request).submit(pool)))
        for _, caller in sent:
            for lease in caller.leases:
                if clock.now >= lease.prefill_due:
                    lease.first_token()
                    lease.release()
        pool.expire()
    normal = [caller for name, caller in sent if name != "flooder"]
    answered = [caller for caller in normal if not caller.waits]
    assert len(answered) >= len(normal) - 3
    assert not any(caller.refusals for caller in answered)
    # its own prefill, the gate's worth before it, and a few of the nine
    assert max(caller.lease.queue_seconds for caller in answered) < 2.0
    flooder = [caller for name, caller in sent if name == "flooder"]
    refused = Counter(caller.refusal.reason for caller in flooder if caller.refusals)
    assert refused[RefusalReason.QUEUE_FULL] + refused[RefusalReason.OVERLOAD] > 4000
    assert sum(bool(caller.leases) for caller in flooder) > 300


def test_Q07_waiting_relabels_nothing() -> None:
    clock = VirtualClock()
    pool = make_pool(clock, scheduling=limits(gate=0.5, prefill={"max_wait": 500.0}))
    running = Caller(ask(PREFILL, 20 * SECOND)).submit(pool)
    waited = Caller(ask(PREFILL, SECOND, deadline=clock.now + 1)).submit(pool)
    clock.advance(400.0)
    decode = Caller(ask(DECODE, SECOND, deadline=clock.now + 9)).submit(pool)
    assert pool.depth(PREFILL) + len(waited.leases) == 1
    for caller in (running, waited, decode):
        for lease in caller.leases:
            lease.first_token()
    assert waited.lease.work_class is PREFILL
    assert decode.lease.work_class is DECODE


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([100, 9_000, 29_000]), st.integers(1, 30)),
        min_size=1,
        max_size=12,
    )
)
def test_the_order_is_the_documented_one(asked: list[tuple[int, int]]) -> None:
    """Of one class, priority and tenant by deadline, where one that cannot make it when its turn
    comes has a second one."""
    clock = VirtualClock()
    pool = make_pool(clock, scheduling=limits(gate=1e-6, decode=PLENTY))
    began = clock.now
    running = Caller(ask(tokens=SECOND)).submit(pool).lease
    callers = [Caller(ask(tokens=tokens, deadline=began + due)) for tokens, due in asked]
    for caller in callers:
        caller.submit(pool)
    waiting = {number: float(due) for number, (_, due) in enumerate(asked)}
    late: set[int] = set()
    while waiting:
        clock.advance(1.0)
        while True:
            expected = min(waiting, key=lambda number: (waiting[number], number))
            tokens, due = asked[expected]
            if expected in late or began + due - clock.now >= tokens / SECOND:
                break
            late.add(expected)
            waiting[expected] = SECOND_DEADLINE * due
        running.first_token()
        [gone] = [n for n, caller in enumerate(callers) if caller.leases and n in waiting]
        assert gone == expected
        del waiting[gone]
        running = callers[gone].lease
