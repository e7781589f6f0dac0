"""Finding in one tree the place that another tree's hints lead to."""

from __future__ import annotations

from itertools import islice

from gateway.prefix.entries import Used
from gateway.prefix.tree import Node, Tree
from gateway.types import HASH_BYTES, Chain

MAX_BRANCHES = 8
"""Children tried where the learner's tree had no branch."""
MAX_NODES = 64
"""Nodes looked at in all."""


def find(tree: Tree, used: Used) -> Chain | None:
    """The prefix that a use builds on, as this tree has it; None where it is not found.

    Hints only lead; the hash of the last block decides, and that stands for all before it.
    """
    hints, known = used.hints, used.known
    todo = [tree.root]
    for _ in range(MAX_NODES):
        if not todo:
            return None
        node = todo.pop()
        end = node.end
        if end >= known:
            at = (known - node.start) * HASH_BYTES
            if node.edge[at - HASH_BYTES : at] == used.last:
                return _prefix(node, at)
            continue
        first = hints.get(end)
        if first is None:
            todo.extend(islice(node.children.values(), MAX_BRANCHES))
        elif first in node.children:
            todo.append(node.children[first])
    return None


def _prefix(node: Node, at: int) -> Chain:
    """All hashes down to the first `at` bytes of a node's edge."""
    edges = [node.edge[:at]]
    while node.parent is not None:
        node = node.parent
        edges.append(node.edge)
    edges.reverse()
    return b"".join(edges)
