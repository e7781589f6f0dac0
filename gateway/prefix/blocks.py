"""Where a prompt key is cut into blocks, and the chained hashes that stand for its prefixes."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from xxhash import xxh3_64_intdigest

from gateway.types import Chain

KEY_BYTES_PER_TOKEN = 4
"""One nominal token: about four bytes of text, and exactly one id of a token-id prompt."""

GRADES = ((16, 128), (16, 256), (32, 512))
LAST_SIZE = 1024


class BlockScale:
    """Sizes of the blocks of a prompt key, growing with depth.

    Short prompts are told apart finely, where they part; long ones stay cheap, because their
    blocks deep inside are large. Two indexes understand each other's chains only when their
    scales are equal.

    Args:
        grades: (number of blocks, bytes per block), from the start of the key on.
        last: bytes of every block after those.

    Raises:
        ValueError: a count or a size below 1.
    """

    __slots__ = ("_cuts", "_ends", "_head_blocks", "_head_span", "_last")

    def __init__(self, grades: Sequence[tuple[int, int]] = GRADES, last: int = LAST_SIZE) -> None:
        if last < 1 or any(count < 1 or size < 1 for count, size in grades):
            raise ValueError(f"blocks need counts and sizes of at least 1: {grades!r}, {last!r}")
        ends = [0]
        for count, size in grades:
            ends.extend(range(ends[-1] + size, ends[-1] + count * size + 1, size))
        self._ends = ends
        self._cuts = [slice(start, end) for start, end in pairwise(ends)]
        self._head_blocks = len(ends) - 1
        self._head_span = ends[-1]
        self._last = last

    @classmethod
    def uniform(cls, size: int) -> BlockScale:
        """Blocks of `size` bytes at every depth."""
        return cls((), size)

    def chain(self, namespace: bytes, key: bytes) -> Chain:
        """The chained hashes of `key`, one per whole block; a last block not full is dropped.

        Each hash is seeded by the one before, so it stands for everything up to its block. The
        first link is the hash of the namespace, which is not itself in the chain. The bytes are
        the same on every machine and in every process.
        """
        digest = xxh3_64_intdigest
        link = digest(namespace)
        # Slices made once and bytes sliced directly are the fastest for small blocks; a
        # memoryview, which saves the copy, wins from about 1 KiB on.
        if len(key) < self._head_span:
            cuts = self._cuts[: self.blocks(len(key))]
            links = [link := digest(key[cut], link) for cut in cuts]
        else:
            size = self._last
            view = memoryview(key)
            starts = range(self._head_span, len(key) - size + 1, size)
            links = [link := digest(key[cut], link) for cut in self._cuts]
            links += [link := digest(view[at : at + size], link) for at in starts]
        packed = array("Q", links)
        if sys.byteorder == "big":
            packed.byteswap()
        return packed.tobytes()

    def blocks(self, span: int) -> int:
        """Whole blocks in the first `span` bytes of a key."""
        if span < self._head_span:
            return bisect_right(self._ends, span) - 1
        return self._head_blocks + (span - self._head_span) // self._last

    def span(self, blocks: int) -> int:
        """Key bytes covered by the first `blocks` blocks."""
        if blocks <= self._head_blocks:
            return self._ends[blocks]
        return self._head_span + (blocks - self._head_blocks) * self._last

    def tokens(self, blocks: int) -> float:
        """Nominal tokens covered by the first `blocks` blocks."""
        return self.span(blocks) / KEY_BYTES_PER_TOKEN
