"""What replicas count of each other. Each test of sharing has an arm in which nothing is heard."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.fleet.engines.engine import EngineLoad
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.reported import Reports
from gateway.shared.records import BadRecord
from gateway.types import Role, WorkClass
from tests.scheduling.replicas import Replica, deliver, ledger
from tests.scheduling.virtual import (
    DECODE,
    PREFILL,
    Caller,
    VirtualClock,
    ask,
    is_clear,
    limits,
    load_of,
)


@pytest.mark.parametrize("shared", [True, False])
def test_another_replicas_lease_counts_as_an_own_one(shared: bool) -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock), Replica("there", clock)
    lease = there.take("a", PREFILL, 5000, 3000, b"12345678")
    own, other = there.loads["a"], here.loads["a"]
    for step in (lambda: None, lease.first_token, lease.release):
        step()
        if shared:
            deliver([here, there])
        assert (ledger(other, clock.now) == ledger(own, clock.now)) == (shared or is_clear(own))
    assert is_clear(other)


def test_another_replicas_lease_is_not_an_own_one() -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock), Replica("there", clock)
    there.take("a").first_token()
    here.take("a", PREFILL)
    deliver([here, there])
    load = here.loads["a"]
    assert (load.in_flight, load.sent, load.own, load.decoding_elsewhere) == (2, 2, 1, 1)
    assert (load.of(PREFILL).own, load.of(DECODE).own) == (1, 0)


def test_what_runs_elsewhere_ends_with_its_replica() -> None:
    clock = VirtualClock()
    here, there, third = (Replica(name, clock) for name in ("here", "there", "third"))
    for turn in range(50):
        lease = there.take("ab"[turn % 2], (PREFILL, DECODE)[turn % 3 == 0], 2000, 1500)
        if turn % 5 == 0:
            lease.first_token()
    third.take("a")
    deliver([here, there, third])
    assert here.shared.elsewhere == 51
    here.shared.gone(there.origin)
    assert here.loads["a"].in_flight == 1
    assert is_clear(here.loads["b"])
    here.shared.gone(third.origin)
    here.shared.gone(b"never-heard")
    assert is_clear(here.loads["a"])


def test_a_replica_that_was_only_silent_counts_again_with_its_next_heartbeat() -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock), Replica("there", clock)
    there.take("a", PREFILL, 5000, 3000)
    there.take("a", PREFILL, 5000, 3000).first_token()
    deliver([here, there])
    before = ledger(here.loads["a"], clock.now)
    here.shared.gone(there.origin)
    assert is_clear(here.loads["a"])
    there.beat()
    deliver([here, there])
    assert ledger(here.loads["a"], clock.now) == before


@pytest.mark.parametrize("heard", [True, False])
def test_a_newcomer_learns_with_the_next_heartbeat_how_long_work_is_under_way(heard: bool) -> None:
    clock = VirtualClock()
    old = Replica("old", clock)
    old.take("a", PREFILL, 5000, 4000)
    clock.advance(0.3)
    new = Replica("new", clock)
    old.outbox.clear()
    old.beat()
    if heard:
        deliver([old, new])
    left = 0.1 if heard else 0.0
    assert new.loads["a"].pending_seconds(clock.now) == pytest.approx(left)


def test_heartbeats_of_many_leases_come_in_parts() -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock), Replica("there", clock)
    leases = [there.take("a") for _ in range(1000)]
    for lease in leases[::3]:
        lease.release()
    there.outbox.clear()
    there.beat()
    assert [len(record) < 16_000 for record in there.outbox] == [True] * 3
    deliver([here, there])
    assert here.loads["a"].in_flight == there.loads["a"].in_flight == 666
    for lease in leases:
        lease.release()
    there.outbox.clear()
    there.beat()
    deliver([here, there])
    assert is_clear(here.loads["a"])


def test_leases_at_a_backend_that_is_not_known_count_once_it_is() -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock, "a"), Replica("there", clock)
    gone, lease = there.take("b"), there.take("b", PREFILL, 2000, 1000)
    lease.first_token()
    gone.release()
    deliver([here, there])
    load = here.loads["b"] = load_of("b")
    here.shared.attach(load)
    assert ledger(load, clock.now) == ledger(there.loads["b"], clock.now)
    here.shared.detach(load)
    assert is_clear(load)
    lease.release()
    deliver([here, there])
    here.shared.attach(load)
    assert is_clear(load)
    assert here.shared.elsewhere == 0


def test_a_lease_older_than_the_sharing_is_not_told_of() -> None:
    clock = VirtualClock()
    here = Replica("here", clock, "")
    load = here.loads["a"] = load_of("a")
    lease = here.take("a")
    here.shared.attach(load)
    lease.first_token()
    lease.release()
    assert here.outbox == []


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("end", ["release", "first token", "gone", "listing"])
def test_room_that_comes_free_elsewhere_is_offered_to_who_waits(end: str, shared: bool) -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock, "a"), Replica("there", clock, "a")
    budget = limits(
        prefill={"max_requests": 1 + (end == "first token"), "max_uncached_tokens": 5000}
    )
    pool = Pool("m", Role.UNIFIED, here.policy, budget, clock)
    pool.set_backends([here.loads["a"]])
    lease = there.take("a", PREFILL, 4000, 4000)
    if shared:
        deliver([here, there])
    caller = Caller(ask(PREFILL, 4000)).submit(pool)
    assert caller.waits == shared  # what is not heard of does not count
    if end == "gone":
        here.shared.gone(there.origin)
    elif end == "first token":
        lease.first_token()
    else:
        lease.release()
    if end == "listing":
        there.outbox.clear()
        here.shared.missed(there.origin)
        there.beat()
    if shared:
        deliver([here, there])
    assert not caller.waits


def test_an_unreadable_record_changes_nothing() -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock), Replica("there", clock)
    there.take("a")
    [good] = there.outbox
    with pytest.raises(BadRecord):
        here.hear(there, [good[:-1]])
    assert is_clear(here.loads["a"])
    here.hear(there, [good])
    assert here.loads["a"].in_flight == 1


@pytest.mark.parametrize("shared", [True, False])
def test_what_an_engine_reports_is_held_against_what_all_replicas_sent(shared: bool) -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock, "a"), Replica("there", clock, "a")
    for _ in range(10):
        there.take("a").first_token()
    if shared:
        deliver([here, there])
    reports = Reports(here.loads, clock, lambda id: None)
    for _ in range(2):
        reports.asked("a")
        reports.answered("a", EngineLoad(running=12, waiting=0))
    load = here.loads["a"]
    assert load.in_flight == 12
    assert load.others.requests == (2 if shared else 12)


KINDS = st.sampled_from(["take", "take", "first_token", "release", "release", "deliver", "beat"])
STEPS = st.lists(st.tuples(KINDS, st.integers(0, 2**16)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**16), loss=st.sampled_from([0.0, 0.2, 0.9]))
def test_Q14_counts_are_right_after_any_stream(
    steps: list[tuple[str, int]], seed: int, loss: float
) -> None:
    clock, random = VirtualClock(), Random(seed)
    replicas = [Replica(name, clock) for name in ("one", "two", "three")]
    out: dict[Replica, list[Lease]] = {replica: [] for replica in replicas}
    for kind, number in steps:
        replica = replicas[number % 3]
        leases = out[replica]
        lease = leases[number % len(leases)] if leases else None
        clock.advance(0.01)
        match kind:
            case "take":
                cached = number % 4 * 100
                anchor = bytes([number % 4] * 8) if cached else b""
                size = cached + number % 2000
                work_class = (PREFILL, DECODE)[number % 2]
                leases.append(
                    replica.take("ab"[number % 5 > 2], work_class, size, size - cached, anchor)
                )
            case "deliver":
                deliver(replicas, random, loss)
            case "beat":
                replica.beat()
            case "first_token" | "release" if lease is not None:
                getattr(lease, kind)()
                if kind == "release":
                    leases.remove(lease)
        for each in replicas:
            assert_adds_up(each, len(out[each]))
    deliver(replicas, random, loss)
    for replica in replicas:
        replica.beat()
    deliver(replicas)
    first, *rest = ([exact(replica.loads[id]) for id in "ab"] for replica in replicas)
    assert all(one == first for one in rest)
    assert sum(load.in_flight for load in replicas[0].loads.values()) == sum(map(len, out.values()))
    for replica in replicas:
        for other in replicas:
            replica.shared.gone(other.origin)
        assert replica.shared.elsewhere == 0
        for lease in out[replica]:
            lease.release()
        assert all(map(is_clear, replica.loads.values()))


@settings(max_examples=200, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**16))
def test_what_has_ended_does_not_come_back_in_whatever_order_it_is_heard(
    steps: list[tuple[str, int]], seed: int
) -> None:
    clock, random = VirtualClock(), Random(seed)
    here, there = Replica("here", clock), Replica("there", clock)
    leases: list[Lease] = []
    for kind, number in steps:
        match kind:
            case "take":
                leases.append(there.take("ab"[number % 2]))
            case "release" if leases:
                leases.pop(number % len(leases)).release()
            case "beat":
                there.beat()
    for lease in leases:
        lease.release()
    records = there.outbox + random.choices(there.outbox, k=20) if there.outbox else []
    random.shuffle(records)
    here.hear(there, records)
    assert here.shared.elsewhere == 0
    assert all(map(is_clear, here.loads.values()))


def assert_adds_up(replica: Replica, own: int) -> None:
    loads = replica.loads.values()
    assert sum(load.own for load in loads) == own
    assert sum(load.in_flight for load in loads) == own + replica.shared.elsewhere
    for load in loads:
        assert load.in_flight == load.pending + load.decoding
        assert 0 <= load.decoding_elsewhere <= load.decoding
        assert load.memory_tokens <= load.context_tokens
        assert all(count >= 0 for count in exact(load).values())


def exact(load: BackendLoad) -> dict[str, int]:
    """A ledger's entries, but for those that depend on when a replica heard of what."""
    counts = {
        "in_flight": load.in_flight,
        "decoding": load.decoding,
        "pending_tokens": load.pending_tokens,
        "context_tokens": load.context_tokens,
        "memory_tokens": load.memory_tokens,
        "long": load.over(1000).tokens,
    }
    for work_class in WorkClass:
        own = load.of(work_class)
        counts |= {
            f"{work_class} in flight": own.in_flight,
            f"{work_class} pending": own.pending,
            f"{work_class} uncached": own.uncached_tokens,
        }
    return counts
