"""Two and more replicas that tell each other what they learn, by example."""

from __future__ import annotations

from gateway.fleet.backend import Backend
from gateway.prefix.blocks import BlockScale
from gateway.prefix.generations import Generations
from gateway.prefix.index import PrefixIndex
from gateway.prefix.sharing import SAME_RESTART, WANTED_PER_SECOND, SharedIndex
from gateway.shared.records import BadRecord, Kind

SCALE = BlockScale.uniform(4)
PLENTY = 1_000_000


def chain(text: str, namespace: bytes = b"m") -> bytes:
    return SCALE.chain(namespace, b"".join(letter.encode() * 4 for letter in text))


class Replica:
    """A gateway as far as its index goes; what it publishes waits in `outbox`."""

    def __init__(self, number: int, *ids: str, capacity: float = PLENTY) -> None:
        self.now = 1000.0
        self.index = PrefixIndex(SCALE, PLENTY)
        self.generations = Generations()
        self.outbox: list[tuple[Kind, bytes]] = []
        self.origin = number.to_bytes(8, "little")
        self.shared = SharedIndex(
            self.index, self.generations, self, lambda: self.now, self.origin
        )
        for id in ids:
            self.index.add_backend(id, capacity)

    def publish(self, kind: Kind, record: bytes) -> None:
        self.outbox.append((kind, record))

    def learn(self, id: str, text: str) -> None:
        self.index.confirm(self.index.book(id, chain(text)))

    def held(self, text: str) -> dict[str, int]:
        return dict(self.index.match(chain(text)).blocks)


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
