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


def highest_two(key: bytes, candidates: Sequence[C]) -> tuple[int, int]:
    """The places of the two candidates that the key falls to first; there must be two at least."""
    first, second = -1, -1
    highest_weight = second_weight = -1
    for place, candidate in enumerate(candidates):
        candidate_weight = _hash(key + candidate.id.encode())
        if candidate_weight > highest_weight:
            second, second_weight = first, highest_weight
            first, highest_weight = place, candidate_weight
        elif candidate_weight > second_weight:
            second, second_weight = place, candidate_weight
    return first, second
