"""The index in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Holding(NamedTuple):
    """What one backend is believed to hold, and to have room for."""

    blocks: int
    tokens: float
    capacity_tokens: float


@dataclass(slots=True, frozen=True)
class IndexStats:
    """The index in numbers.

    Attributes:
        nodes: nodes of the tree.
        blocks: distinct blocks in the tree.
        held_blocks: blocks held, summed over the backends.
        dead_blocks: the same of backends removed or reset, where memory is not yet given back, and
            of those awaited.
            Together with `held_blocks` never above the index's bound.
        evicted_blocks: blocks evicted so far, for a backend's capacity or the index's bound.
        bookings: bookings neither confirmed nor withdrawn yet.
        backends: by id.
    """

    nodes: int
    blocks: int
    held_blocks: int
    dead_blocks: int
    evicted_blocks: int
    bookings: int
    backends: Mapping[str, Holding]
