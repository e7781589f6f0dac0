"""Uses that other replicas were told of in part, for as long as they may ask for all of one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import inf

from gateway.prefix.entries import Used
from gateway.types import HASH_BYTES, Clock

MAX_USES = 4096
MAX_BLOCKS = 1_000_000
"""Of all uses that are kept together."""

INTERVAL = 1.0
"""Seconds before the same use is told in full once more."""


@dataclass(slots=True)
class _Use:
    used: Used
    told_at: float = -inf


class Told:
    """The latest of them; the oldest go first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._uses: OrderedDict[int, _Use] = OrderedDict()
        self._blocks = 0

    def keep(self, used: Used) -> None:
        """A use of which only the end was told; `used` has all of it."""
        uses = self._uses
        uses[used.number] = _Use(used)
        self._blocks += len(used.new) // HASH_BYTES
        while len(uses) > MAX_USES or self._blocks > MAX_BLOCKS:
            _, oldest = uses.popitem(last=False)
            self._blocks -= len(oldest.used.new) // HASH_BYTES

    def again(self, number: int) -> Used | None:
        """The use that somebody asks for, if it is to be told now: everybody hears it, so once is
        enough for all who ask at about the same time."""
        use = self._uses.get(number)
        now = self._clock()
        if use is None or now - use.told_at < INTERVAL:
            return None
        use.told_at = now
        return use.used
