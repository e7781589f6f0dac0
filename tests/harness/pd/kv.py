"""KV blocks that a prefill engine keeps for a decode engine, and what became of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gateway.types import Clock


class Fate(StrEnum):
    HELD = "held"
    READ = "read"
    """The decode engine has them."""
    EXPIRED = "expired"
    """Nobody came within the lease."""
    RELEASED = "released"
    """Given back because the decode engine, or whoever asked, said that nobody will come."""


@dataclass(slots=True, eq=False)
class Kv:
    """The blocks of one prompt.

    Attributes:
        key: what the decode leg must show to get them.
        prompt: what they are the cache of.
        tokens: how many.
        params: what the prefill engine answered, to be shown to the decode engine as it is.
        readers: decode legs that have it in use; its lease does not end meanwhile.
    """

    key: str
    prompt: str
    tokens: int
    expires: float
    clock: Clock
    params: Any = None
    readers: int = 0
    _end: Fate | None = None

    @property
    def fate(self) -> Fate:
        if self._end is None and not self.readers and self.clock() >= self.expires:
            self._end = Fate.EXPIRED
        return self._end or Fate.HELD

    def end(self, fate: Fate) -> None:
        """They are free from now on, if they were not before."""
        if self.fate is Fate.HELD:
            self._end = fate


@dataclass(slots=True)
class Ledger:
    """All blocks that one prefill engine ever kept for others.

    Attributes:
        lease: seconds that they are kept for a decode engine that does not come.
        unwanted: keys of which a decode engine has said that it will not come, before there was
            anything.
    """

    lease: float
    clock: Clock = time.monotonic
    entries: list[Kv] = field(default_factory=list)
    unwanted: set[str] = field(default_factory=set)

    def hold(self, key: str, prompt: str, tokens: int, params: Any = None) -> Kv:
        kv = Kv(key, prompt, tokens, self.clock() + self.lease, self.clock, params)
        if key in self.unwanted:
            kv.end(Fate.RELEASED)
        self.entries.append(kv)
        return kv

    def find(self, key: str) -> Kv | None:
        """The last that was kept under a key."""
        return next((kv for kv in reversed(self.entries) if kv.key == key), None)

    @property
    def held(self) -> int:
        """Tokens whose blocks are not free."""
        return sum(kv.tokens for kv in self.entries if kv.fate is Fate.HELD)

    @property
    def fates(self) -> list[Fate]:
        return [kv.fate for kv in self.entries]
