"""All that an index knows for certain, as bytes, for another to start from.

Backend by backend, uses follow one another from the most recent to the least. So the beginning of
a prefix is always told before what came after it was last used, and each hash is told once: a use
says in which earlier one its beginning is, and how much of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

from gateway.prefix.entries import put_numbers, take_numbers
from gateway.prefix.generations import Generations
from gateway.prefix.holder import Holder, Touch
from gateway.prefix.index import PrefixIndex
from gateway.prefix.tree import Node
from gateway.prefix.wire import Reader, put_number, put_text
from gateway.shared.records import BadRecord
from gateway.types import HASH_BYTES, Chain

VERSION = 1

CHUNK_BYTES = 1 << 16
STEP_USES = 256
"""Uses in one chunk, at most: together with the bytes, what a step takes."""


class _Part(IntEnum):
    END = 0
    BACKEND = 1
    USE = 2


def dump(
    index: PrefixIndex, generations: Generations, step_uses: int = STEP_USES
) -> Iterator[bytes]:
    """The chunks, each made when it is asked for.

    The index may change from one to the next. What it learns after the first may be in the dump or
    not; what it knew before is, unless it was evicted or used again meanwhile.
    """
    out = bytearray([VERSION])
    put_numbers(out, generations.numbers())
    uses = 0
    seen: dict[Node, int] = {}
    for holder in list(index.holders()):
        if not holder.live:
            continue
        put_number(out, _Part.BACKEND)
        put_text(out, holder.id)
        put_number(out, holder.epoch)
        put_number(out, holder.limit)
        put_number(out, int(holder.reports))
        base, time = holder.accepted, 0
        touch = holder.newest
        while touch is not None and holder.live:
            path = [] if touch.retired else _certain(touch)
            if path:
                put_number(out, _Part.USE)
                put_number(out, _unsigned(touch.time - time))
                time = touch.time
                put_number(out, max(base - touch.accepted, 0))
                _put_path(out, path, seen, uses)
                uses += 1
            if len(out) >= CHUNK_BYTES or (path and not uses % step_uses):
                yield bytes(out)
                out.clear()
            # One that was retired meanwhile still knows what came next.
            touch = touch.older
    put_number(out, _Part.END)
    yield bytes(out)


class Load:
    """Takes in a dump, into an index that may know something already: of two uses of a block the
    later one counts, wherever it comes from.

    A backend that is not in the index is awaited, because backends may be discovered only after
    the dump was loaded.
    """

    def __init__(self, index: PrefixIndex, generations: Generations) -> None:
        self._index = index
        self._generations = generations
        self._started = False
        self._ended = False
        self._uses: list[tuple[int, int, Chain]] = []
        self._holder: Holder | None = None
        self._touch: Touch | None = None
        self._time = 0

    def feed(self, chunk: bytes) -> None:
        """The next chunk, in order.

        Raises:
            BadRecord: it cannot be read; what came before it is loaded.
        """
        reader = Reader(chunk)
        if not self._started:
            version = reader.take(1)[0]
            if version != VERSION:
                raise BadRecord(f"a dump of version {version}, this gateway reads {VERSION}")
            self._started = True
            for model, number in take_numbers(reader).items():
                self._generations.raise_to(model, number)
        while reader.more:
            match reader.number():
                case _Part.USE:
                    self._use(reader)
                case _Part.BACKEND:
                    self._backend(reader)
                case _Part.END:
                    reader.end()
                    self._ended = True
                    self._uses.clear()
                case tag:
                    raise BadRecord(f"part {tag} of a dump is unknown")

    def finish(self) -> None:
        """There are no more chunks.

        Raises:
            BadRecord: there should have been.
        """
        if not self._ended:
            raise BadRecord("a dump without its end")

    def _backend(self, reader: Reader) -> None:
        index = self._index
        id, epoch, limit = reader.text(), reader.number(), reader.number()
        reports = bool(reader.number())
        index.begin_epoch(id, epoch)
        holder = index.holder(id) or index.expect_backend(id, limit, epoch)
        self._touch, self._time = None, 0
        self._holder = holder if holder.epoch == epoch else None
        if holder.limit == holder.stated:  # nothing was learnt about it here
            index.revise(holder, limit)
        holder.reports |= reports

    def _use(self, reader: Reader) -> None:
        self._time += _signed(reader.number())
        if self._time < 0:
            raise BadRecord("a use before the first")
        age, back, depth = reader.number(), reader.number(), reader.number()
        new = reader.take(reader.number() * HASH_BYTES)
        use = len(self._uses) - back
        if use < 0 or (depth and not back):
            raise BadRecord(f"a use builds on number {use}")
        self._uses.append((use, depth, new))
        holder = self._holder
        # It may be reset, removed or given up between two steps.
        if holder is None or self._index.holder(holder.id) is not holder:
            return
        chain = self._chain(len(self._uses) - 1)
        newer = None if self._touch is None or self._touch.retired else self._touch
        touch = self._index.hold(holder, chain, self._time, age, newer)
        self._touch = newer if touch.retired else touch

    def _chain(self, use: int) -> Chain:
        """All hashes of a use."""
        parts: list[bytes] = []
        blocks = None
        while blocks != 0:
            before, depth, new = self._uses[use]
            parts.append(new if blocks is None else new[: max(blocks - depth, 0) * HASH_BYTES])
            blocks = depth if blocks is None else min(blocks, depth)
            use = before
        parts.reverse()
        return b"".join(parts)


def _certain(touch: Touch) -> list[Node]:
    """The nodes from the deepest one that a touch stands for, without what is only tentative, up
    to the root, which is left out; none where nothing is left."""
    holder, node = touch.holder, touch.leaf
    while node.pending and holder in node.pending:
        assert node.parent is not None, "the root has no holders"
        node = node.parent
    if node.holders.get(holder) is not touch:
        return []
    path = []
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path


def _put_path(out: bytearray, path: list[Node], seen: dict[Node, int], use: int) -> None:
    """Append where the beginning of a path was told, and the hashes of the rest."""
    new: list[bytes] = []
    back = depth = 0
    for node in path:
        before = seen.get(node)
        if before is not None:
            back, depth = use - before, node.end
            break
        seen[node] = use
        new.append(node.edge)
    new.reverse()
    hashes = b"".join(new)
    put_number(out, back)
    put_number(out, depth)
    put_number(out, len(hashes) // HASH_BYTES)
    out += hashes


def _unsigned(number: int) -> int:
    """Small numbers of either sign as small ones of none."""
    return number << 1 if number >= 0 else ~(number << 1)


def _signed(number: int) -> int:
    return ~(number >> 1) if number & 1 else number >> 1
