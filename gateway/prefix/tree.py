"""A radix tree of chains whose edges are packed runs of block hashes."""

from __future__ import annotations

from gateway.prefix.holder import Booking, Holder, Touch
from gateway.types import HASH_BYTES, Chain


class Node:
    """A run of blocks that have the same holders, last used by the same touches.

    Attributes:
        edge: hashes of the run; empty only at the root.
        start, end: depth of the run's first block, and after its last.
        children: by the first hash of their edges.
        holders: who has all of the run, each with its last touch. A child's holders are always
            among its parent's.
        pending: of those, the ones that have it only tentatively, with the bookings it rests on;
            None when there are none.
    """

    __slots__ = ("children", "edge", "end", "holders", "parent", "pending", "start")

    def __init__(
        self,
        edge: bytes,
        start: int,
        parent: Node | None,
        holders: dict[Holder, Touch],
        pending: dict[Holder, set[Booking]] | None,
    ) -> None:
        self.edge = edge
        self.start = start
        self.end = start + len(edge) // HASH_BYTES
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.holders = holders
        self.pending = pending


class Tree:
    """The structure alone: who holds what is the index's business.

    Splitting and merging keep the lower node and make or drop the upper one. The leaf of a touch
    is never the upper part of two nodes that agree, so it stays right by itself.

    Attributes:
        nodes: nodes without the root.
        blocks: distinct blocks.
    """

    __slots__ = ("_walked", "blocks", "nodes", "root")

    def __init__(self) -> None:
        # The last walk, while it is still true: what is matched is nearly always booked next.
        self._walked: tuple[Chain, list[Node], int] | None = None
        self.root = Node(b"", 0, None, {}, None)
        self.nodes = 0
        self.blocks = 0

    def walk(self, chain: Chain) -> tuple[list[Node], int]:
        """The nodes along `chain`, root excluded, and how many leading blocks they share with it.

        Only the last node may be shared in part, and then at least its first block is. The list is
        the caller's to read, not to change.
        """
        walked = self._walked
        if walked is not None and walked[0] is chain:
            return walked[1], walked[2]
        path: list[Node] = []
        at = 0
        node = self.root.children.get(chain[:HASH_BYTES])
        while node is not None:
            path.append(node)
            edge = node.edge
            if not chain.startswith(edge, at):
                at += _common(edge, chain, at)
                break
            at += len(edge)
            node = node.children.get(chain[at : at + HASH_BYTES])
        shared = at // HASH_BYTES
        self._walked = (chain, path, shared)
        return path, shared

    def lay(self, chain: Chain) -> list[Node]:
        """The nodes that `chain` ends with and no other goes beyond, split and grown for it. It
        must not be empty; the caller sees to the holders of what is new, and to merging."""
        known, shared = self.walk(chain)
        path = known.copy()
        if path and shared < path[-1].end:
            path[-1] = self.split(path[-1], shared - path[-1].start)
        if shared * HASH_BYTES < len(chain):
            path.append(self.grow(path[-1] if path else self.root, chain[shared * HASH_BYTES :]))
        return path

    def grow(self, parent: Node, edge: bytes) -> Node:
        """A new leaf below `parent`, without holders. No child of `parent` may start like it."""
        self._walked = None
        leaf = Node(edge, parent.end, parent, {}, None)
        parent.children[edge[:HASH_BYTES]] = leaf
        self.nodes += 1
        self.blocks += len(edge) // HASH_BYTES
        return leaf

    def split(self, node: Node, blocks: int) -> Node:
        """Cut `node` after its first `blocks` blocks, of which it must have more; the upper part
        is returned."""
        self._walked = None
        edge, at, parent = node.edge, blocks * HASH_BYTES, node.parent
        assert parent is not None, "the root has no blocks"
        pending = node.pending
        upper = Node(
            edge[:at],
            node.start,
            parent,
            node.holders.copy(),
            None if pending is None else {holder: set(on) for holder, on in pending.items()},
        )
        parent.children[edge[:HASH_BYTES]] = upper
        upper.children[edge[at : at + HASH_BYTES]] = node
        node.edge = edge[at:]
        node.start += blocks
        node.parent = upper
        self.nodes += 1
        return upper

    def merge(self, node: Node) -> None:
        """Join `node` to its only child, if it has just one and nothing tells them apart."""
        if len(node.children) != 1 or node.parent is None:
            return
        (child,) = node.children.values()
        if node.holders != child.holders or node.pending != child.pending:
            return
        self._walked = None
        child.edge = node.edge + child.edge
        child.start = node.start
        child.parent = node.parent
        node.parent.children[node.edge[:HASH_BYTES]] = child
        self.nodes -= 1

    def shorten(self, leaf: Node, blocks: int) -> None:
        """Keep the first `blocks` blocks of a leaf, at least one."""
        self._walked = None
        self.blocks -= len(leaf.edge) // HASH_BYTES - blocks
        leaf.edge = leaf.edge[: blocks * HASH_BYTES]
        leaf.end = leaf.start + blocks

    def remove(self, leaf: Node) -> None:
        """Take a leaf out, and merge its parent where that leaves an only child."""
        parent = leaf.parent
        assert parent is not None, "the root stays"
        self._walked = None
        del parent.children[leaf.edge[:HASH_BYTES]]
        self.nodes -= 1
        self.blocks -= len(leaf.edge) // HASH_BYTES
        self.merge(parent)


def _common(edge: bytes, chain: Chain, at: int) -> int:
    """Bytes of the whole blocks that `edge` shares with `chain` from byte `at` on, given that the
    first block is shared and the whole edge is not."""
    shared, parted = HASH_BYTES, len(edge)
    while parted - shared > HASH_BYTES:
        middle = (shared + parted) // (2 * HASH_BYTES) * HASH_BYTES
        if chain.startswith(edge[:middle], at):
            shared = middle
        else:
            parted = middle
    return shared
