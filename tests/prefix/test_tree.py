"""The radix tree's structure: walking, splitting, merging."""

from __future__ import annotations

import pytest

from gateway.prefix.holder import Booking, Holder, Touch
from gateway.prefix.tree import Node, Tree


def chain(text: str) -> bytes:
    """One block per letter; the prefix it stands for is up to the test."""
    return b"".join(letter.encode() * 8 for letter in text)


def hold(holder: Holder, *path: Node) -> Touch:
    touch = Touch(holder, path[-1], 1)
    for node in path:
        node.holders[holder] = touch
    return touch


@pytest.fixture
def holder() -> Holder:
    return Holder("a", 1000, 1000)


def edges(tree: Tree) -> list[bytes]:
    found, todo = [], [tree.root]
    while todo:
        node = todo.pop()
        for first, child in node.children.items():
            assert child.edge.startswith(first)
            assert child.parent is node
            assert child.start == node.end
            found.append(child.edge)
            todo.append(child)
    assert tree.nodes == len(found)
    assert tree.blocks == sum(map(len, found)) // 8
    return sorted(found)


def test_walk_of_an_empty_tree() -> None:
    assert Tree().walk(chain("abc")) == ([], 0)
    assert Tree().walk(b"") == ([], 0)


@pytest.mark.parametrize("length", range(1, 20))
def test_walk_finds_the_block_where_chains_part(length: int) -> None:
    tree = Tree()
    whole = "abcdefghijklmnopqrst"[:length]
    leaf = tree.grow(tree.root, chain(whole))
    for shared in range(1, length + 1):
        assert tree.walk(chain(whole[:shared])) == ([leaf], shared)
        assert tree.walk(chain(whole[:shared] + "XYZ")) == ([leaf], shared)
    assert tree.walk(chain("X" + whole)) == ([], 0)


def test_walk_goes_on_below_a_split() -> None:
    tree = Tree()
    lower = tree.grow(tree.root, chain("abcd"))
    upper = tree.split(lower, 2)
    side = tree.grow(upper, chain("xy"))
    assert tree.walk(chain("abxz")) == ([upper, side], 3)
    assert tree.walk(chain("abcd")) == ([upper, lower], 4)
    assert tree.walk(chain("abq")) == ([upper], 2)
    assert edges(tree) == [chain("ab"), chain("cd"), chain("xy")]


def test_split_keeps_the_lower_node_and_merge_undoes_it(holder: Holder) -> None:
    tree = Tree()
    leaf = tree.grow(tree.root, chain("abcd"))
    touch = hold(holder, leaf)
    upper = tree.split(leaf, 1)
    assert (upper.edge, leaf.edge) == (chain("a"), chain("bcd"))
    assert upper.holders == leaf.holders
    assert upper.holders is not leaf.holders
    tree.merge(upper)
    assert edges(tree) == [chain("abcd")]
    assert tree.walk(chain("abcd")) == ([leaf], 4)
    assert touch.leaf is leaf


def test_what_differs_is_not_merged(holder: Holder) -> None:
    tree = Tree()
    leaf = tree.grow(tree.root, chain("abcd"))
    upper = tree.split(leaf, 2)
    hold(holder, upper, leaf)
    hold(holder, upper)
    tree.merge(upper)
    assert tree.nodes == 2, "last used at different times"

    hold(holder, upper, leaf)
    leaf.pending = {holder: {Booking(holder, chain("abcd"), 1)}}
    tree.merge(upper)
    assert tree.nodes == 2, "one of them is tentative"

    leaf.pending = None
    side = tree.grow(upper, chain("x"))
    tree.merge(upper)
    assert tree.nodes == 3, "two children"
    tree.remove(side)
    assert edges(tree) == [chain("abcd")]


def test_split_copies_the_bookings(holder: Holder) -> None:
    tree = Tree()
    leaf = tree.grow(tree.root, chain("abcd"))
    booking = Booking(holder, chain("abcd"), 1)
    leaf.pending = {holder: {booking}}
    upper = tree.split(leaf, 2)
    assert upper.pending is not None
    upper.pending[holder].clear()
    assert leaf.pending == {holder: {booking}}


def test_the_root_is_never_merged() -> None:
    tree = Tree()
    leaf = tree.grow(tree.root, chain("ab"))
    tree.merge(tree.root)
    assert edges(tree) == [chain("ab")]
    tree.remove(leaf)
    assert edges(tree) == []


def test_shorten() -> None:
    tree = Tree()
    leaf = tree.grow(tree.root, chain("abcd"))
    tree.shorten(leaf, 1)
    assert edges(tree) == [chain("a")]
