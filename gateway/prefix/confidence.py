"""How far to believe that a backend still holds what the index has of it.

Confidence is near 1 while the backend has cached little since the last use, and one half once that
has come to its capacity.
"""

from __future__ import annotations

from math import tanh

from gateway.prefix.blocks import BlockScale
from gateway.prefix.holder import Holder
from gateway.prefix.tree import Node


def expected_tokens(scale: BlockScale, holder: Holder, path: list[Node], depth: int) -> float:
    """Tokens of the first `depth` blocks of `path`, each weighted by the confidence in it."""
    tokens, limit, stale = scale.tokens, holder.limit, holder.stale
    expected = 0.0
    for node in path:
        if node.start >= depth:
            break
        confidence = 1.0
        then = node.holders[holder].accepted
        if then <= stale:
            # The logistic function with a width of a tenth of the capacity, in the form that
            # cannot overflow.
            confidence = 0.5 - 0.5 * tanh(5 * ((holder.accepted - then) / limit - 1))
        expected += confidence * (tokens(min(node.end, depth)) - tokens(node.start))
    return expected
