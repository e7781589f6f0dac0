"""Two and more replicas that tell each other what they learn, by example."""

from __future__ import annotations

from gateway.fleet.backend import Backend
from gateway.prefix.sharing import SAME_RESTART, WANTED_PER_SECOND
from gateway.shared.records import BadRecord, Kind
from tests.prefix.replica import Replica, chain


def send(origin: Replica, *others: Replica) -> list[tuple[Kind, bytes]]:
    """Deliver what a replica has published."""
    records, origin.outbox = origin.outbox, []
    for other in others:
        for kind, record in records:
            other.shared.apply(kind, record, origin.origin)
    return records


def test_what_one_learns_the_other_knows() -> None:
    one, two, deaf = (Replica(number, "a", "b") for number in (1, 2, 3))
    one.learn("a", "system-one")
    one.learn("b", "system-two")
    send(one, two)
    assert two.held("system-one, more") == {"a": 10, "b": 7}
    assert deaf.held("system-one, more") == {}
    assert two.outbox == [], "what was told is not told again"
