"""What replicas tell each other about prefixes, as bytes.

Each entry knows where it ends. Numbers are varints. Backends go by their ids, which are equal on
all replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.prefix.tree import Node
from gateway.prefix.wire import Reader, put_number, put_text
from gateway.shared.records import ORIGIN_BYTES, BadRecord, Origin
from gateway.types import HASH_BYTES, Chain

MAX_HINTS = 64

MAX_NUMBER = 1 << 46
"""The number of a use is below this: enough for two years of a million a second."""


@dataclass(slots=True, frozen=True)
class Used:
    """A backend has used, and holds, a prefix.

    A hash stands for the whole prefix up to its block. So of a prefix that others know in part,
    the hash where that part ends is enough to be certain of it; the hints are the way there.

    Attributes:
        backend: its id.
        epoch: of the backend, when it was used.
        number: counts the uses, without the low bits that tell the replicas apart.
        known: blocks of the prefix that are not in `new`.
        last: hash of the last of them; empty when there are none.
        hints: hashes of blocks on the way there, by depth: where the tree that it was learnt in
            has branches.
        new: hashes of what follows.
    """

    backend: str
    epoch: int
    number: int
    new: Chain
    known: int = 0
    last: bytes = b""
    hints: Mapping[int, bytes] = field(default_factory=dict)

    def encode(self) -> bytes:
        out = bytearray()
        put_text(out, self.backend)
        put_number(out, self.epoch)
        put_number(out, self.number)
        put_number(out, self.known)
        if self.known:
            out += self.last
            put_number(out, len(self.hints))
            before = 0
            for depth, first in self.hints.items():
                put_number(out, depth - before)
                out += first
                before = depth
        put_number(out, len(self.new) // HASH_BYTES)
        out += self.new
        return bytes(out)

    @classmethod
    def decode(cls, record: bytes) -> Used:
        reader = Reader(record)
        backend, epoch, number, known = (
            reader.text(),
            reader.number(),
            reader.number(),
            reader.number(),
        )
        last = b""
        hints = {}
        if known:
            last = reader.take(HASH_BYTES)
            depth = 0
            for _ in range(reader.number()):
                depth += reader.number()
                hints[depth] = reader.take(HASH_BYTES)
        new = reader.take(reader.number() * HASH_BYTES)
        reader.end()
        if not known and not new:
            raise BadRecord("a prefix without blocks")
        if number >= MAX_NUMBER:
            raise BadRecord(f"use number {number} is too large")
        return cls(backend, epoch, number, new, known, last, hints)


def hints_of(path: Iterable[Node], known: int) -> dict[int, bytes]:
    """Hints for the first `known` blocks of a path."""
    hints: dict[int, bytes] = {}
    for node in path:
        if node.start >= known or len(hints) == MAX_HINTS:
            break
        hints[node.start] = node.edge[:HASH_BYTES]
    return hints


@dataclass(slots=True, frozen=True)
class Reset:
    """A backend's cache is empty.

    Attributes:
        epoch: the one that begins.
        restart: its engine was seen to have restarted, as others are likely to see for themselves.
    """

    backend: str
    epoch: int
    restart: bool

    def encode(self) -> bytes:
        out = bytearray()
        put_text(out, self.backend)
        put_number(out, self.epoch)
        put_number(out, int(self.restart))
        return bytes(out)

    @classmethod
    def decode(cls, record: bytes) -> Reset:
        reader = Reader(record)
        reset = cls(reader.text(), reader.number(), bool(reader.number()))
        reader.end()
        return reset


@dataclass(slots=True, frozen=True)
class Cleared:
    """Prefixes are void: of backends, by the epochs that begin, or of models, by generations."""

    epochs: Mapping[str, int] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        out = bytearray()
        for numbers in (self.epochs, self.generations):
            put_numbers(out, numbers)
        return bytes(out)

    @classmethod
    def decode(cls, record: bytes) -> Cleared:
        reader = Reader(record)
        cleared = cls(take_numbers(reader), take_numbers(reader))
        reader.end()
        return cleared


@dataclass(slots=True, frozen=True)
class Capacity:
    """What a backend's cache was found to hold.

    Attributes:
        limit: key bytes.
    """

    backend: str
    limit: int

    def encode(self) -> bytes:
        out = bytearray()
        put_text(out, self.backend)
        put_number(out, self.limit)
        return bytes(out)

    @classmethod
    def decode(cls, record: bytes) -> Capacity:
        reader = Reader(record)
        capacity = cls(reader.text(), reader.number())
        reader.end()
        if not capacity.limit:
            raise BadRecord("a capacity of 0")
        return capacity


@dataclass(slots=True, frozen=True)
class Wanted:
    """What a use builds on is not known: say it again, all of it.

    Attributes:
        origin: who is asked.
        number: of the use.
    """

    origin: Origin
    number: int

    def encode(self) -> bytes:
        out = bytearray(self.origin)
        put_number(out, self.number)
        return bytes(out)

    @classmethod
    def decode(cls, record: bytes) -> Wanted:
        reader = Reader(record)
        wanted = cls(reader.take(ORIGIN_BYTES), reader.number())
        reader.end()
        return wanted


def put_numbers(out: bytearray, numbers: Mapping[str, int]) -> None:
    put_number(out, len(numbers))
    for name, number in numbers.items():
        put_text(out, name)
        put_number(out, number)


def take_numbers(reader: Reader) -> dict[str, int]:
    return {reader.text(): reader.number() for _ in range(reader.number())}
