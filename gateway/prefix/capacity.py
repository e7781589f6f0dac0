"""What an engine's report of cached tokens says about the size of its cache.

An LRU cache keeps a prefix as long as what it cached since is less than its size. So each report
bounds the size: a prefix that was gone, after so much, from above; one that was still there, though
a cache of the size believed would have dropped it, from below.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.prefix.blocks import BlockScale

BLEND = 0.1
"""How far one report moves the belief towards the bound that it gives."""
LEAST_GROWTH = 1.25
"""A prefix that outlived its expected eviction says that the cache is larger, if not by how much:
the bound is then at least this many times the belief."""
MAX_RATIO = 8
"""The belief stays within this factor of the capacity that was stated."""
ZEROS_BEFORE_RESET = 5

_FOUND = 0.9
"""Share of a prefix that must be reported for it to count as found: token counts are estimates,
and engines round down to blocks of their own."""

_CONFIDENT_BLOCKS = 4
"""Blocks from which on a report of nothing cached cannot be a matter of rounding."""


def beyond_doubt(limit: int, known: Iterable[tuple[int, int]]) -> bool:
    """Whether a good part of a chain must have been cached; `limit` and `known` as below."""
    return any(end >= _CONFIDENT_BLOCKS and since < limit / 2 for end, since in known)


def revised_limit(
    scale: BlockScale,
    limit: int,
    known: Iterable[tuple[int, int]],
    outlived: tuple[int, int] | None,
    cached: float,
) -> int:
    """The capacity to believe in after a report.

    Args:
        scale: of the index.
        limit: the capacity believed in so far. Here as below, in key bytes.
        known: parts of the chain that the index was sure to have seen cached, from its head on:
            blocks up to the end of each, and how much was cached since its last use.
        outlived: what would come next but was evicted from the index, if anything: blocks before
            it, and how much was cached since its last use.
        cached: what the engine found.
    """
    for end, since in known:
        if cached < _FOUND * scale.span(end - 1):
            # Below half of the limit a miss has another cause than the lack of room.
            return limit + int(BLEND * (since - limit)) if limit / 2 < since < limit else limit
    if outlived is not None:
        before, since = outlived
        if cached >= scale.span(before + 1) + (1 - _FOUND) * scale.span(before):
            return limit + int(BLEND * (max(since, LEAST_GROWTH * limit) - limit))
    return limit
