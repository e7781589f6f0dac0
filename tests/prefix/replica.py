"""A gateway as far as its index goes, for tests of what replicas tell each other."""

from __future__ import annotations

from gateway.prefix.blocks import BlockScale
from gateway.prefix.generations import Generations
from gateway.prefix.index import PrefixIndex
from gateway.prefix.shared_index import SharedIndex
from gateway.shared.records import Kind

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
        self.shared = SharedIndex(self.index, self.generations, self, lambda: self.now, self.origin)
        for id in ids:
            self.index.add_backend(id, capacity)

    def publish(self, kind: Kind, record: bytes) -> None:
        self.outbox.append((kind, record))

    def learn(self, id: str, text: str) -> None:
        self.index.confirm(self.index.book(id, chain(text)))

    def held(self, text: str) -> dict[str, int]:
        return dict(self.index.match(chain(text)).blocks)
