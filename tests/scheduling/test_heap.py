from hypothesis import given
from hypothesis import strategies as st

from gateway.scheduling.heap import TicketHeap
from gateway.scheduling.ticket import Ticket
from tests.scheduling.virtual import ask


def ticket(number: int) -> Ticket:
    waiting = Ticket(ask(), print, print)
    waiting.number = number
    return waiting


@given(
    st.lists(
        st.tuples(st.sampled_from(["push", "remove", "take"]), st.integers(0, 40)), max_size=200
    )
)
def test_the_lowest_key_goes_first_and_of_equal_ones_who_came_first(
    steps: list[tuple[str, int]],
) -> None:
    heap, tickets = TicketHeap(), [ticket(number) for number in range(41)]
    keys: dict[int, int] = {}
    for step, number in steps:
        if step == "push":
            keys[number] = (number * 7) % 5
            heap.push(tickets[number], keys[number])
        elif step == "remove":
            assert heap.remove(tickets[number]) is (keys.pop(number, None) is not None)
        elif keys:
            least = min(keys, key=lambda number: (keys[number], number))
            assert heap.first() is tickets[least]
            heap.remove(tickets[least])
            del keys[least]
        assert len(heap) == len(keys)
        assert {waiting.number for waiting in heap} == set(keys)
        low = {number for number, key in keys.items() if key <= 2}
        assert {waiting.number for waiting in heap.up_to(2)} == low
    assert (heap.first() is None) is (not keys)


def test_what_left_does_not_pile_up() -> None:
    heap, stays = TicketHeap(), ticket(0)
    heap.push(stays, 0.0)
    for number in range(1, 10_000):
        leaves = ticket(number)
        heap.push(leaves, 1.0)
        heap.remove(leaves)
    assert len(heap._heap) < 50
    assert heap.first() is stays
