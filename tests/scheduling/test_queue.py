import pytest

from gateway.config import ClassLimits
from gateway.scheduling.queue import ClassQueue
from gateway.scheduling.ticket import Ticket
from tests.scheduling.virtual import DECODE, ask


def queue(**limits: float) -> ClassQueue:
    return ClassQueue(DECODE, ClassLimits(**limits))  # type: ignore[arg-type]


def push(waiting: ClassQueue, now: float, wait: float = 10.0) -> Ticket:
    ticket = Ticket(ask(), print, print)
    ticket.start(now, wait)
    waiting.push(ticket)
    return ticket


def test_first_come_first_served() -> None:
    waiting = queue()
    tickets = [push(waiting, float(now)) for now in range(3)]
    served = []
    while waiting:
        served.append(waiting.head())
        waiting.remove(waiting.head())
    assert served == tickets


def test_a_ticket_can_leave_from_anywhere_once() -> None:
    waiting = queue()
    first, middle, last = (push(waiting, 0.0) for _ in range(3))
    assert waiting.remove(middle)
    assert not waiting.remove(middle)
    assert len(waiting) == 2
    assert waiting.pop_all() == [first, last]
    assert len(waiting) == 0


def test_the_overdue_leave_in_order_wherever_they_stand() -> None:
    waiting = queue()
    long, middle, short, shorter = (push(waiting, 0.0, wait) for wait in (9.0, 5.0, 2.0, 1.0))
    assert waiting.pop_overdue(0.9) == []
    assert waiting.pop_overdue(2.0) == [short, shorter]
    assert waiting.pop_overdue(5.0) == [middle]
    assert waiting.pop_overdue(8.9) == []
    assert waiting.pop_overdue(9.0) == [long]
    assert len(waiting) == 0


def test_is_full_counts_all_who_wait() -> None:
    waiting = queue(max_waiting=2)
    push(waiting, 0.0)
    assert not waiting.is_full()
    push(waiting, 0.0)
    assert waiting.is_full()


def test_oldest_wait_is_the_heads() -> None:
    waiting = queue()
    assert waiting.oldest_wait(5.0) == 0.0
    push(waiting, 1.0)
    push(waiting, 3.0)
    assert waiting.oldest_wait(5.0) == 4.0


def test_drain_is_estimated_from_the_pace_of_grants() -> None:
    waiting = queue(max_wait=600)
    tickets = [push(waiting, 0.0, 600.0) for _ in range(30)]
    for turn, ticket in enumerate(tickets[:20], start=1):
        waiting.remove(ticket)
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
    ticket = push(waiting, 0.0, 30.0)
    assert waiting.drain_seconds(0.0) == 30.0
    for _ in range(50):
        push(waiting, 0.0, 30.0)
    waiting.remove(ticket)
    waiting.note_pace(5.0)
    assert waiting.drain_seconds(5.0) == 30.0
