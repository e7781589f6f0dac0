"""What a prefill engine keeps of requests that have ended there, for other engines to fetch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from loadtests.sim.cache import BlockCache
from loadtests.sim.sequence import Sequence
from loadtests.sim.timeline import Timeline, Timer


class Keeping:
    """Blocks stay in use until they are fetched or their lease is over, whichever comes first.

    Args:
        on_expired: told when a lease is over, after the blocks are free again.
    """

    def __init__(
        self, cache: BlockCache, timeline: Timeline, on_expired: Callable[[], None]
    ) -> None:
        self._cache = cache
        self._timeline = timeline
        self._on_expired = on_expired
        self._kept: dict[Sequence, tuple[int, Timer]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._kept

    def keep(self, sequence: Sequence, unnamed: int, lease: float) -> None:
        """
        Args:
            unnamed: blocks that it holds beside the named units.
            lease: seconds.
        """
        due = self._timeline.time() + lease
        timer = self._timeline.call_at(due, partial(self._expire, sequence))
        self._kept[sequence] = unnamed, timer

    def give_back(self, sequence: Sequence) -> bool:
        """
        Returns:
            False when nothing is kept of it (any more).
        """
        kept = self._kept.pop(sequence, None)
        if kept is None:
            return False
        unnamed, timer = kept
        timer.cancel()
        self._cache.release(sequence.names, unnamed)
        return True

    def _expire(self, sequence: Sequence) -> None:
        if self.give_back(sequence):
            self._on_expired()
