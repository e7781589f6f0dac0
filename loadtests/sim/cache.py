"""The block KV cache: what is computed stays until its place is needed, oldest first.

Blocks are handled in units: `unit_blocks` neighbouring blocks that stand or fall together, named
by the hash of everything up to their end. A live engine has units of one block, a replay of a
trace units of the trace's own granularity (512 tokens, say), and 32 times fewer things to count.
A block is blank, in use, or idle: unused, but kept for its content in the order of last use.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

Key = int


class BlockCache:
    """
    Args:
        blocks: how many there are.
        unit_blocks: blocks per unit.
        usable: how many can be in use at once, all by default; the others only keep content.
        reuse: whether content is ever found again.
    """

    def __init__(
        self, blocks: int, unit_blocks: int = 1, *, usable: int | None = None, reuse: bool = True
    ) -> None:
        self.blocks = blocks
        self.usable = blocks if usable is None else min(usable, blocks)
        self.unit_blocks = unit_blocks
        self.evicted = 0
        """Blocks that lost their content to make room."""
        self._reuse = reuse
        self._blank = blocks
        self._users: dict[Key, int] = {}
        self._idle: OrderedDict[Key | Scrap, int] = OrderedDict()
        self._idle_blocks = 0

    @property
    def free(self) -> int:
        """Blocks that can be allocated: blank and idle ones, as far as they may be used."""
        return self._blank + self._idle_blocks - (self.blocks - self.usable)

    @property
    def used(self) -> int:
        return self.usable - self.free

    def match(self, keys: Sequence[Key], limit: int) -> int:
        """How many leading units of `keys`, at most `limit`, are there."""
        users, idle = self._users, self._idle
        for index in range(limit):
            key = keys[index]
            if key not in users and key not in idle:
                return index
        return limit

    def admit(self, keys: Sequence[Key], units: int, blocks: int) -> bool:
        """Take the first `units` of `keys`, which match, into use and allocate `blocks` more.

        Returns:
            Whether there is room; if not, nothing has changed.
        """
        users, idle, size = self._users, self._idle, self.unit_blocks
        held = [key for key in keys[:units] if key in idle]
        if self.free - len(held) * size < blocks:
            return False
        for key in held:
            del idle[key]
        self._idle_blocks -= len(held) * size
        for key in keys[:units]:
            users[key] = users.get(key, 0) + 1
        self.allocate(blocks)
        return True

    def allocate(self, blocks: int) -> None:
        """Take `blocks`, at most `free`, evicting what was used longest ago."""
        blank = self._blank
        while blank < blocks:
            _, size = self._idle.popitem(last=False)
            self._idle_blocks -= size
            self.evicted += size
            blank += size
        self._blank = blank - blocks

    def name(self, key: Key) -> bool:
        """Make a unit of allocated blocks findable.

        Returns:
            False when that content is there already: the caller's copy then has no name.
        """
        if not self._reuse or key in self._users or key in self._idle:
            return False
        self._users[key] = 1
        return True

    def release(self, keys: Sequence[Key], unnamed: int) -> None:
        """Give back named units, in prompt order, and `unnamed` blocks. The tail goes first."""
        users, idle, size = self._users, self._idle, self.unit_blocks
        if unnamed:
            idle[Scrap()] = unnamed
            self._idle_blocks += unnamed
        for key in reversed(keys):
            left = users[key] - 1
            if left:
                users[key] = left
            else:
                del users[key]
                idle[key] = size
                self._idle_blocks += size

    def reset(self) -> bool:
        """Forget all content; refused, as in vLLM, while blocks are in use."""
        if self.used:
            return False
        self.forget()
        return True

    def forget(self) -> None:
        """Forget the content of all blocks that are not in use."""
        self._idle.clear()
        self._blank += self._idle_blocks
        self._idle_blocks = 0


class Scrap:
    """Stands in the eviction order for blocks whose content nobody can find again."""

    __slots__ = ()
