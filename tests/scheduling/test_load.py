from math import inf

import pytest

from gateway.config import Scheduling
from gateway.scheduling.lease import Lease
from gateway.scheduling.line import Line
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.ticket import Ticket
from gateway.types import Decision, Reason, WorkClass
from policies.base import Candidate
from tests.scheduling.virtual import DECODE, PREFILL, VirtualClock, ask


def lease(load: BackendLoad, clock: VirtualClock, seconds: float = 1.0, tokens: int = 100) -> Lease:
    return Lease(load, Decision(load.id, Reason.ONLY), DECODE, tokens, 40, seconds, clock)


def test_is_a_candidate() -> None:
    candidate: Candidate = BackendLoad("a", prefill_rate=5000.0)
    assert candidate.prefill_rate == 5000.0
    assert candidate.capacity_tokens > 0
    assert candidate.step_seconds > candidate.stream_seconds > 0


def test_classes_have_shares_of_their_own() -> None:
    load = BackendLoad("a")
    lease(load, VirtualClock())
    assert load.of(DECODE).in_flight == 1
    assert load.of(PREFILL).in_flight == 0


def test_pending_work_shrinks_with_time_but_never_to_nothing() -> None:
    load, clock = BackendLoad("a"), VirtualClock()
    lease(load, clock, 4.0)
    clock.advance(1.0)
    lease(load, clock, 1.0)
    assert load.pending_seconds(clock.now) == 4.0
    assert load.pending_seconds(clock.now + 3.0) == 1.0
    assert load.pending_seconds(inf) == 0.5


@pytest.mark.parametrize("how", ["first_token", "release"])
def test_the_first_one_that_ends_leaves_the_others_whole(how: str) -> None:
    load, clock = BackendLoad("a"), VirtualClock()
    first, _ = lease(load, clock, 4.0), lease(load, clock, 2.0)
    clock.advance(6.0)
    getattr(first, how)()
    assert load.pending_seconds(clock.now) == 2.0


def test_one_that_is_broken_off_behind_others_takes_only_its_own() -> None:
    load, clock = BackendLoad("a"), VirtualClock()
    lease(load, clock, 4.0)
    behind = lease(load, clock, 2.0)
    clock.advance(3.0)
    behind.release()
    assert load.pending_seconds(clock.now) == 1.0


def test_one_that_overtakes_had_its_part_of_the_time() -> None:
    load, clock = BackendLoad("a"), VirtualClock()
    lease(load, clock, 4.0)
    overtakes = lease(load, clock, 2.0)
    clock.advance(3.0)
    overtakes.first_token()
    assert load.pending_seconds(clock.now) == 3.0


def test_the_queue_is_what_goes_first() -> None:
    load, clock = BackendLoad("a"), VirtualClock()
    line = Line(load)
    load.join(line)
    lease(load, clock, 1.0)

    def wait(work_class: WorkClass, seconds: float, due: float) -> Ticket:
        ticket = Ticket(ask(work_class, deadline=due), print, print)
        ticket.seconds = seconds
        line.push(ticket, Scheduling())
        return ticket

    def queue_seconds(work_class: WorkClass, due: float) -> float:
        return load.queue_seconds(ask(work_class, now=clock.now, deadline=due))

    wait(DECODE, 0.5, 2000.0)
    long = wait(PREFILL, 8.0, 2000.0)
    assert queue_seconds(DECODE, 1900.0) == 1.0
    assert queue_seconds(DECODE, 2100.0) == 1.5
    assert queue_seconds(PREFILL, 1900.0) == 1.5
    assert queue_seconds(PREFILL, 2100.0) == 9.5
    assert load.held_seconds() == 8.5
    line.remove(long)
    assert queue_seconds(PREFILL, 2100.0) == 1.5
    load.part(line)
    assert queue_seconds(PREFILL, 2100.0) == 1.0
    assert load.held_seconds() == 0.0


def test_lengths_are_counted_whenever_they_are_asked_for() -> None:
    load, clock = BackendLoad("a"), VirtualClock()
    long, short = lease(load, clock, tokens=900), lease(load, clock, tokens=100)
    assert (load.over(500).requests, load.over(500).tokens) == (1, 900)
    later = lease(load, clock, tokens=500)
    assert (load.over(500).requests, load.over(500).tokens) == (2, 1400)
    for held in (long, short, later):
        held.release()
    assert (load.over(500).requests, load.over(500).tokens) == (0, 0)


def test_tells_its_watchers_when_room_comes_free() -> None:
    load, calls = BackendLoad("a"), []
    first, second = (lambda _: calls.append(1)), (lambda _: calls.append(2))
    load.watch(first)
    load.watch(second)
    held = lease(load, VirtualClock())
    assert calls == []
    held.first_token()
    assert sorted(calls) == [1, 2]
    load.unwatch(first)
    held.release()
    assert calls[2:] == [2]


def test_pools_that_share_a_backend_take_turns_at_being_first() -> None:
    load, calls = BackendLoad("a"), []
    load.watch(lambda _: calls.append("x"))
    load.watch(lambda _: calls.append("y"))
    for _ in range(4):
        load.room_came_free()
    assert calls[::2] == ["x", "y", "x", "y"]
