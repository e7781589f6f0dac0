"""Rendezvous (highest random weight) hashing: who gets a key, the same in every process.

When a backend comes it takes an even share of the keys from all others, and no other key moves;
when it goes its keys spread evenly, and no other key moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import xxhash

from policies.base import Candidate

C = TypeVar("C", bound=Candidate)

_hash = xxhash.xxh3_64_intdigest


def weight(key: bytes, backend_id: str) -> int:
    return _hash(key + backend_id.encode())


def highest(key: bytes, candidates: Sequence[C]) -> C:
    """The candidate that the key falls to; there must be at least one."""
    chosen, highest_weight = candidates[0], -1
    for candidate in candidates:
        candidate_weight = _hash(key + candidate.id.encode())
        if candidate_weight > highest_weight:
            chosen, highest_weight = candidate, candidate_weight
    return chosen
