from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.lane import AGING, SECOND_DEADLINE, Lane, Order, second_deadline
from gateway.scheduling.ticket import Ticket
from tests.scheduling.virtual import ask


def put(
    lane: Lane, number: int, *, arrived: float = 0.0, due: float = 100.0, seconds: float = 1.0
) -> Ticket:
    ticket = Ticket(ask(deadline=due), print, print)
    ticket.arrive(number, arrived, inf)
    ticket.seconds = ticket.held = seconds
    lane.push(ticket)
    lane.seconds += seconds
    return ticket


def drain(lane: Lane, now: float) -> list[int]:
    order = []
    while (ticket := lane.first(now)) is not None:
        order.append(ticket.number)
        lane.remove(ticket)
    assert len(lane) == 0
    return order


@pytest.mark.parametrize(
    ("order", "expected"), [("deadline", [2, 0, 1]), ("arrival", [0, 1, 2]), ("work", [1, 0, 2])]
)
def test_orders(order: Order, expected: list[int]) -> None:
    lane = Lane(order)
    put(lane, 0, arrived=0.0, due=50.0, seconds=3.0)
    put(lane, 1, arrived=1.0, due=60.0, seconds=0.5)
    put(lane, 2, arrived=2.0, due=40.0, seconds=9.0)
    assert drain(lane, 3.0) == expected


def test_who_can_no_longer_make_it_gets_a_second_deadline() -> None:
    lane = Lane("deadline")
    late = put(lane, 0, arrived=1.0, due=6.0, seconds=5.0)
    assert lane.first(1.0) is late
    put(lane, 1, arrived=2.0, due=second_deadline(late) - 1.0)
    put(lane, 2, arrived=2.0, due=second_deadline(late) + 1.0)
    assert lane.first(1.5) is not late
    assert second_deadline(late) == 1.0 + SECOND_DEADLINE * 5.0
    assert drain(lane, 8.0) == [1, 0, 2]


@given(
    st.lists(
        st.tuples(st.floats(0.0, 2.0), st.floats(0.1, 10.0), st.floats(0.0, 4.0), st.booleans()),
        max_size=60,
    )
)
def test_what_comes_after_a_second_deadline_goes_behind_it(
    steps: list[tuple[float, float, float, bool]],
) -> None:
    lane, now = Lane("deadline"), 0.0
    for number, (gap, target, seconds, goes) in enumerate(steps):
        now += gap
        put(lane, number, arrived=now, due=now + target, seconds=seconds)
        if goes:
            first = lane.first(now)
            assert first is not None
            assert all(first.arrived <= second_deadline(other) for other in lane)
            lane.remove(first)


@pytest.mark.parametrize("order", ["arrival", "work"])
def test_in_the_other_orders_nobody_is_late(order: Order) -> None:
    lane = Lane(order)
    overdue = put(lane, 0, due=1.0, seconds=5.0)
    assert lane.first(8.0) is overdue
    assert not overdue.late


def test_by_work_nothing_waits_longer_than_ten_times_its_work_behind_newer_tickets() -> None:
    lane = Lane("work")
    put(lane, 0, arrived=0.0, seconds=4.0)
    put(lane, 1, arrived=4.0 / AGING - 1.0, seconds=0.0)
    put(lane, 2, arrived=4.0 / AGING + 1.0, seconds=0.0)
    assert drain(lane, 100.0) == [1, 0, 2]


def test_a_newcomer_waits_for_what_is_due_before_it_or_with_it() -> None:
    lane = Lane("deadline")
    for number, due in enumerate((10.0, 20.0, 30.0, inf)):
        put(lane, number, due=due, seconds=2.0**number)
    assert lane.seconds_before(ask(deadline=5.0)) == 0.0
    assert lane.seconds_before(ask(deadline=20.0)) == 3.0
    assert lane.seconds_before(ask(deadline=inf)) == 15.0


def test_the_late_are_due_by_their_second_deadline_to_a_newcomer_too() -> None:
    lane = Lane("deadline")
    late = put(lane, 0, due=5.0, seconds=2.0)
    assert lane.first(4.0) is late
    second = SECOND_DEADLINE * 5.0
    assert lane.seconds_before(ask(deadline=second - 1.0)) == 0.0
    assert lane.seconds_before(ask(deadline=second + 1.0)) == 2.0


@pytest.mark.parametrize("order", ["arrival", "work"])
def test_in_the_other_orders_a_newcomer_waits_for_all(order: Order) -> None:
    lane = Lane(order)
    put(lane, 0, due=50.0, seconds=2.0)
    assert lane.seconds_before(ask(deadline=5.0)) == 2.0
