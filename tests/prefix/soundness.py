"""What holds of every index at any time, whatever has happened to it."""

from __future__ import annotations

from itertools import pairwise

from gateway.prefix.holder import Touch
from gateway.prefix.index import PrefixIndex
from gateway.prefix.tree import Node


def assert_sound(index: PrefixIndex) -> None:
    """The tree is closed under prefixes, merged as far as it can be, and its touches are in order
    and lead to their leaves."""
    deepest: dict[Touch, Node] = {}
    for node in all_nodes(index):
        parent = node.parent
        assert parent is not None
        assert node.holders, "held by nobody"
        assert node.start == parent.end
        assert parent.children[node.edge[:8]] is node
        if parent.parent is not None:
            assert node.holders.keys() <= parent.holders.keys(), "not closed under prefixes"
            same = node.holders == parent.holders and node.pending == parent.pending
            assert not (len(parent.children) == 1 and same), "not merged"
        assert node.pending is None or node.pending, "an empty dict instead of None"
        for holder, on in (node.pending or {}).items():
            assert holder in node.holders
            assert on, "pending on nothing"
            assert not holder.live or all(booking.open for booking in on)
        for touch in node.holders.values():
            if touch not in deepest or deepest[touch].start < node.start:
                deepest[touch] = node
    awaited = index._incarnations._awaited.values()
    holders = {*index.holders(), *awaited, *index._holdings.dead}
    assert {touch for holder in holders for touch in holder.touches()} == set(deepest)
    assert all(touch.leaf is node for touch, node in deepest.items())
    for holder in holders:
        touches = list(holder.touches())
        assert all(one.time >= other.time for one, other in pairwise(touches))
        assert all(one.accepted >= other.accepted for one, other in pairwise(touches))
        assert all(one.older is other for one, other in pairwise(touches))
        assert all(other.newer is one for one, other in pairwise(touches))
        assert holder.oldest is (touches[-1] if touches else None)


def all_nodes(index: PrefixIndex) -> list[Node]:
    found: list[Node] = []
    todo = [index.tree.root]
    while todo:
        children = todo.pop().children.values()
        found.extend(children)
        todo.extend(children)
    return found
