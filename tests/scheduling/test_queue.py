from itertools import count

import pytest

from gateway.config import ClassLimits
from gateway.scheduling.queue import MAX_DISPLACED, ClassQueue
from gateway.scheduling.ticket import Ticket
from gateway.types import Priority
from tests.scheduling.virtual import DECODE, ask

HIGH, NORMAL, LOW = Priority
NUMBERS = count()


def queue(**limits: float) -> ClassQueue:
    return ClassQueue(DECODE, ClassLimits(**limits))


def ticket(
    now: float = 0.0,
    wait: float = 10.0,
    *,
    tokens: int = 100,
    size: int = 0,
    tenant: str = "",
    priority: Priority = NORMAL,
) -> Ticket:
    made = Ticket(ask(tokens=tokens, tenant=tenant, priority=priority), print, print, size=size)
    made.arrive(next(NUMBERS), now, wait)
    return made


def push(waiting: ClassQueue, *args: float, **facts: object) -> Ticket:
    made = ticket(*args, **facts)
    waiting.push(made)
    return made


def drop_overdue(waiting: ClassQueue, now: float) -> list[Ticket]:
    dropped = []
    for overdue in waiting.overdue(now):
        waiting.remove(overdue)
        dropped.append(overdue)
    return dropped


def test_a_ticket_can_leave_from_anywhere_once() -> None:
    waiting = queue()
    first, middle, last = (push(waiting, 0.0) for _ in range(3))
    assert waiting.remove(middle)
    assert not waiting.remove(middle)
    assert list(waiting) == [first, last]
    assert middle not in waiting


def test_the_overdue_leave_in_order_wherever_they_stand() -> None:
    waiting = queue()
    long, middle, short, shorter = (push(waiting, 0.0, wait) for wait in (9.0, 5.0, 2.0, 1.0))
    assert drop_overdue(waiting, 0.9) == []
    assert drop_overdue(waiting, 2.0) == [shorter, short]
    waiting.remove(middle)
    assert drop_overdue(waiting, 8.9) == []
    assert drop_overdue(waiting, 9.0) == [long]
    assert len(waiting) == 0


def test_oldest_wait_is_the_heads() -> None:
    waiting = queue()
    assert waiting.oldest_wait(5.0) == 0.0
    push(waiting, 1.0)
    push(waiting, 3.0)
    assert waiting.oldest_wait(5.0) == 4.0


# who finds a place


@pytest.mark.parametrize(
    ("limits", "fits"),
    [
        ({"max_waiting": 2}, 2),
        ({"max_waiting_tokens": 350}, 3),
        ({"max_waiting_bytes": 4096}, 4),
        ({"max_waiting": 0}, 0),
    ],
)
def test_Q05_each_bound_counts_all_who_wait(limits: dict[str, float], fits: int) -> None:
    waiting = queue(**limits)
    for _ in range(fits):
        assert waiting.displaced_by(ticket(size=1024)) == []
        push(waiting, size=1024)
    assert waiting.displaced_by(ticket(size=1024)) is None


def test_one_larger_than_a_bound_waits_alone() -> None:
    waiting = queue(max_waiting_tokens=50)
    assert waiting.displaced_by(ticket()) == []
    push(waiting)
    assert waiting.displaced_by(ticket(tokens=1)) is None


def test_lower_priorities_go_first_and_the_latest_of_them() -> None:
    waiting = queue(max_waiting=4)
    push(waiting, 0.0, priority=HIGH)
    push(waiting, 0.0, priority=LOW)
    last_low = push(waiting, 1.0, priority=LOW)
    last_normal = push(waiting, 2.0, priority=NORMAL)
    assert waiting.displaced_by(ticket(priority=HIGH)) == [last_low]
    assert waiting.displaced_by(ticket(priority=NORMAL)) == [last_low]
    assert waiting.displaced_by(ticket(priority=LOW)) is None
    for low in [waiting_one for waiting_one in waiting if waiting_one.request.priority is LOW]:
        waiting.remove(low)
    push(waiting, priority=HIGH)
    push(waiting, priority=HIGH)
    assert waiting.displaced_by(ticket(priority=HIGH)) == [last_normal]
    assert waiting.displaced_by(ticket(priority=LOW)) is None


def test_nobody_is_displaced_for_one_that_still_finds_no_place() -> None:
    waiting = queue(max_waiting_tokens=1000)
    push(waiting, tokens=800, priority=HIGH)
    lows = [push(waiting, float(number), tokens=50, priority=LOW) for number in range(4)]
    assert waiting.displaced_by(ticket(tokens=300)) is None
    assert waiting.displaced_by(ticket(tokens=90)) == [lows[3], lows[2]]


def test_one_newcomer_displaces_only_so_many() -> None:
    waiting = queue(max_waiting_tokens=1000)
    for number in range(100):
        push(waiting, float(number), tokens=10, priority=LOW)
    exactly = waiting.displaced_by(ticket(tokens=10 * MAX_DISPLACED))
    assert exactly is not None
    assert len(exactly) == MAX_DISPLACED
    assert waiting.displaced_by(ticket(tokens=10 * MAX_DISPLACED + 1)) is None


def test_a_tenant_that_fills_the_queue_makes_place_for_the_others() -> None:
    waiting = queue(max_waiting=100)
    for number in range(100):
        last = push(waiting, float(number), tenant="flooder")
    assert waiting.displaced_by(ticket(tenant="flooder")) is None
    assert waiting.displaced_by(ticket(tenant="normal")) == [last]
    for number in range(2000):
        newcomer = ticket(float(number), tenant=f"{number % 4}" if number % 2 else "flooder")
        displaced = waiting.displaced_by(newcomer)
        if displaced is not None:
            for victim in displaced:
                waiting.remove(victim)
            waiting.push(newcomer)
    tenants = [waiting_one.request.tenant for waiting_one in waiting]
    assert [tenants.count(name) for name in ("flooder", "1", "3")] == pytest.approx([33] * 3, abs=2)


def test_few_large_ones_fill_a_queue_too() -> None:
    waiting = queue(max_waiting_tokens=1000, max_waiting=100)
    large = push(waiting, tokens=600, tenant="large")
    for _ in range(4):
        push(waiting, tokens=100, tenant="small")
    assert waiting.displaced_by(ticket(tokens=100, tenant="small")) == [large]


# pace


def test_drain_is_estimated_from_the_pace_of_grants() -> None:
    waiting = queue(max_wait=600)
    tickets = [push(waiting, 0.0, 600.0) for _ in range(30)]
    for turn, granted in enumerate(tickets[:20], start=1):
        waiting.remove(granted)
        waiting.note_pace(turn * 2.0)
    assert waiting.drain_seconds(40.0) == pytest.approx(10 * 2.0)


def test_a_stall_makes_the_estimate_grow() -> None:
    waiting = queue(max_wait=600)
    tickets = [push(waiting, 0.0, 600.0) for _ in range(11)]
    waiting.remove(tickets[0])
    waiting.note_pace(1.0)
    assert waiting.drain_seconds(2.0) == pytest.approx(10.0)
    assert waiting.drain_seconds(34.0) > 25.0


def test_idle_time_is_no_stall() -> None:
    waiting = queue(max_wait=600)
    first = push(waiting, 0.0, 600.0)
    waiting.remove(first)
    waiting.note_pace(1.0)
    for _ in range(5):
        push(waiting, 10_000.0, 600.0)
    assert waiting.drain_seconds(10_000.0) == pytest.approx(5.0)


def test_the_wait_limit_bounds_the_estimate() -> None:
    waiting = queue(max_wait=30)
    first = push(waiting, 0.0, 30.0)
    assert waiting.drain_seconds(0.0) == 30.0
    for _ in range(50):
        push(waiting, 0.0, 30.0)
    waiting.remove(first)
    waiting.note_pace(5.0)
    assert waiting.drain_seconds(5.0) == 30.0


def test_who_comes_later_waits_for_those_that_go_before_it() -> None:
    waiting = queue()
    first = push(waiting, 0.0)
    waiting.remove(first)
    waiting.note_pace(1.0)
    for _ in range(10):
        push(waiting, 1.0, tenant="flooder")
        push(waiting, 1.0, tenant="flooder", priority=LOW)
    push(waiting, 1.0, tenant="other")
    assert waiting.seconds_before(ticket(tenant="flooder"), 1.0) == pytest.approx(10 + 1)
    assert waiting.seconds_before(ticket(tenant="new"), 1.0) == pytest.approx(1 + 1)
    assert waiting.seconds_before(ticket(tenant="other"), 1.0) == pytest.approx(1 + 2)
    assert waiting.seconds_before(ticket(tenant="new", priority=LOW), 1.0) == pytest.approx(12)
    assert waiting.seconds_before(ticket(priority=HIGH), 1.0) == 0.0


def test_without_a_pace_nothing_is_predicted() -> None:
    waiting = queue()
    push(waiting)
    assert waiting.seconds_before(ticket(), 100.0) == 0.0
