"""The sequences that decode: one token each per step, so it is enough to count steps."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count

from loadtests.sim.sequence import Sequence


class DecodeBatch:
    """
    Args:
        block_size: tokens per block.

    Attributes:
        sequences: in the order in which they began to decode.
        context: tokens in the KV cache that they attend to, together.
    """

    def __init__(self, block_size: int) -> None:
        self.sequences: dict[Sequence, None] = {}
        self.context = 0
        self._block_size = block_size
        self._growing = [0] * block_size
        """Sequences by the step, modulo the block size, that begins a block for them."""
        self._ends: list[tuple[int, int, Sequence]] = []
        """Heap of (step count at which it ends, order, sequence); who left early stays in it."""
        self._order = count()

    def __len__(self) -> int:
        return len(self.sequences)

    def add(self, sequence: Sequence, steps: int, left: int) -> None:
        """`sequence`, all prefilled, decodes `left` more tokens; the engine has done `steps`."""
        sequence.since = steps
        sequence.finish_at = steps + left
        self.sequences[sequence] = None
        self.context += sequence.target
        self._growing[(steps - sequence.target) % self._block_size] += 1
        heapq.heappush(self._ends, (sequence.finish_at, next(self._order), sequence))

    def remove(self, sequence: Sequence, steps: int) -> int:
        """Returns: tokens that it holds in the cache."""
        del self.sequences[sequence]
        decoded = steps - sequence.since
        held = sequence.target + decoded
        sequence.generated += decoded
        self.context -= held
        self._growing[(sequence.since - sequence.target) % self._block_size] -= 1
        return held

    def advance(self, steps: int) -> None:
        self.context += steps * len(self.sequences)

    def growth(self, first: int, after: int) -> int:
        """New blocks that the steps from number `first` up to before `after` begin."""
        cycles, rest = divmod(after - first, self._block_size)
        growing, size = self._growing, self._block_size
        return cycles * len(self.sequences) + sum(
            growing[step % size] for step in range(first, first + rest)
        )

    def steps_within(self, first: int, blocks: int) -> int:
        """How many steps from number `first` on begin no more than `blocks` new blocks."""
        growing, size = self._growing, self._block_size
        cycles, left = divmod(blocks, len(self.sequences))
        steps = cycles * size
        while growing[(first + steps) % size] <= left:
            left -= growing[(first + steps) % size]
            steps += 1
        return steps

    def next_end(self) -> int:
        """Step count at which the next of them, of which there must be one, is done."""
        ends = self._ends
        while not self._current(ends[0]):
            heapq.heappop(ends)
        return ends[0][0]

    def pop_ended(self, steps: int) -> Iterator[Sequence]:
        """Those that are done after `steps`; each must be removed before the next is asked for."""
        ends = self._ends
        while ends and ends[0][0] <= steps:
            entry = heapq.heappop(ends)
            if self._current(entry):
                yield entry[2]

    def _current(self, entry: tuple[int, int, Sequence]) -> bool:
        end, _, sequence = entry
        return sequence in self.sequences and sequence.finish_at == end
