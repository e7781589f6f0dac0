"""Who got the conversations that could have gone anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from policies.base import Candidate
from policies.congestion import Decayed
from policies.rendezvous import highest

C = TypeVar("C", bound=Candidate)

FILL_SHARE = 1.05
"""How far above the mean a backend's recent share may be before it is passed over."""


class Placements:
    """Places keys by their hash, but no more on one backend than on the others.

    A hash alone spreads few keys unevenly, and the backend that gets twice its share evicts what
    would have come again while its neighbour has room. The shares are of the last minute, by
    weight; where they are even the hash decides, so that gateway replicas agree.
    """

    def __init__(self) -> None:
        self._recent: dict[str, Decayed] = {}

    def choose(self, key: bytes, candidates: Sequence[C], now: float, weight: float) -> C:
        """
        Args:
            weight: of this key, in any unit that is the same for all.
        """
        recent = [self._share(candidate.id).at(now) for candidate in candidates]
        bound = FILL_SHARE * sum(recent) / len(recent) + 0.5 * weight
        open_ = [
            candidate for candidate, share in zip(candidates, recent, strict=True) if share <= bound
        ]
        return highest(key, open_ or candidates)

    def note(self, candidate: Candidate, now: float, weight: float) -> None:
        """Count a key that was placed."""
        self._share(candidate.id).add(now, weight)

    def _share(self, id: str) -> Decayed:
        share = self._recent.get(id)
        if share is None:
            share = self._recent[id] = Decayed()
        return share
