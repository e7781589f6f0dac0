"""Who holds which blocks, within what each has room for and all of them together."""

from __future__ import annotations

from collections import deque

from gateway.prefix.blocks import BlockScale
from gateway.prefix.holder import Booking, Holder, Touch
from gateway.prefix.recency import Recency
from gateway.prefix.tree import Node, Tree
from gateway.types import HASH_BYTES, Chain


class Holdings:
    """The tree, with the touches that say how recent its blocks are.

    Args:
        scale: where the blocks of the chains end.
        max_blocks: bound in blocks held, summed over the holders.

    Attributes:
        tree: to be read only.
        blocks: held, also by the dead whose memory is not yet given back.
        evicted: blocks so far.
        dead: incarnations that are over, of which something is still in the tree.

    Raises:
        ValueError: `max_blocks` below 1.
    """

    def __init__(self, scale: BlockScale, max_blocks: int) -> None:
        self.tree = Tree()
        self.blocks = 0
        self.evicted = 0
        self._scale = scale
        self._recency = Recency()
        self.dead: deque[Holder] = deque()
        self.set_max_blocks(max_blocks)

    def set_max_blocks(self, max_blocks: int) -> None:
        """Change the bound. To a lower one the index comes bit by bit, with each `reclaim`: all at
        once would take too long.

        Raises:
            ValueError: below 1.
        """
        if max_blocks < 1:
            raise ValueError(f"max_blocks must be at least 1, got {max_blocks}")
        self._bound = max_blocks
        self._max_blocks = max(max_blocks, self.blocks)

    def longest(self, limit: int) -> int:
        """Blocks of the longest chain that a holder with this capacity, in key bytes, can hold."""
        return min(self._scale.blocks(limit), self._max_blocks)

    def book(self, booking: Booking) -> None:
        """Have a booking's chain held tentatively, where it is not held yet. It is not empty."""
        holder, chain, tree = booking.holder, booking.chain, self.tree
        path = tree.lay(chain)
        total = held = path[-1].end
        touch = Touch(holder, path[-1], booking.time)
        known_parts, accepted = booking.known, holder.accepted
        for node in path:
            last = node.holders.get(holder)
            node.holders[holder] = touch
            if last is None:
                held = min(held, node.start)
                if node.pending is None:
                    node.pending = {}
                node.pending[holder] = {booking}
                booking.tentative = True
            else:
                if last.leaf is node:
                    holder.retire(last)
                if node.pending and holder in node.pending:
                    node.pending[holder].add(booking)
                    booking.tentative = True
                elif not booking.tentative:
                    known_parts.append((node.end, accepted - last.accepted))
        if holder.evicted and held < total:
            first = chain[held * HASH_BYTES : (held + 1) * HASH_BYTES]
            before = holder.evicted.pop(first, None)
            if before is not None:
                booking.outlived = (held, accepted - before)
        self._added(touch, held, total)
        for node in reversed(path):
            tree.merge(node)
        if holder.span > holder.limit or self.blocks > self._max_blocks:
            self._trim(holder)

    def hold(
        self,
        holder: Holder,
        chain: Chain,
        time: int,
        age: int | None,
        newer: Touch | None,
    ) -> Touch:
        """Have a chain held for certain that was used at `time`; as `PrefixIndex.hold`."""
        tree, span = self.tree, self._scale.span
        chain = chain[: holder.longest * HASH_BYTES]
        path = tree.lay(chain) if chain else [tree.root]
        total = held = path[-1].end
        touch = Touch(holder, path[-1], time)
        touch.accepted -= age or 0
        touch.retired = True
        if not chain:
            return touch
        accepted = 0
        used = False
        for node in path:
            last = node.holders.get(holder)
            if last is None:
                held = min(held, node.start)
                accepted += span(node.end) - span(node.start)
            elif node.pending and holder in node.pending:
                _settle(node, holder)
                accepted += span(node.end) - span(node.start)
            # Records grow older with depth: those that are newer are at the head.
            if last is None or last.time < time:
                node.holders[holder] = touch
                used = True
                if last is not None and last.leaf is node:
                    holder.retire(last)
        if used:
            if holder.evicted and held < total:
                holder.evicted.pop(chain[held * HASH_BYTES : (held + 1) * HASH_BYTES], None)
            touch.retired = False
            self._added(touch, held, total, newer)
        for node in reversed(path):
            tree.merge(node)
        if age is None:
            holder.accept(accepted)
        if holder.span > holder.limit or self.blocks > self._max_blocks:
            self._trim(holder)
        return touch

    def confirm(self, booking: Booking) -> None:
        """What was tentative for this booking stays."""
        holder, tree, span = booking.holder, self.tree, self._scale.span
        path, _ = tree.walk(booking.chain)
        accepted = 0
        for node in reversed(path):
            if node.pending and booking in node.pending.get(holder, ()):
                _settle(node, holder)
                accepted += span(node.end) - span(node.start)
            tree.merge(node)
        holder.accept(accepted)

    def withdraw(self, booking: Booking) -> None:
        """What only this booking stood for is held no longer."""
        holder, tree = booking.holder, self.tree
        path, _ = tree.walk(booking.chain)
        # From the deepest node up. Nobody can hold on to a node below one that this empties:
        # such a booking or confirmation would cover the upper one as well.
        for node in reversed(path):
            waiting = node.pending and node.pending.get(holder)
            if waiting and booking in waiting:
                waiting.remove(booking)
                if waiting:
                    tree.merge(node)
                else:
                    self._release(holder, node, 0)

    def resize(self, holder: Holder, limit: int) -> None:
        """Give a holder another capacity, in key bytes."""
        holder.resize(limit, self.longest(limit))
        self.evict(holder)

    def bury(self, holder: Holder) -> None:
        """An incarnation is over: what it held is cleared away bit by bit. Constant time."""
        holder.live = False
        if holder.oldest is not None:
            self.dead.append(holder)

    def reclaim(self, records: int) -> None:
        """Clear up to `records` records out of the tree: those of removed and reset backends, then
        what is over a bound that was lowered."""
        while self.dead and records > 0:
            holder = self.dead[0]
            assert holder.oldest is not None, "the dead that hold nothing are not kept"
            self._release(holder, holder.oldest.leaf, 0)
            records -= 1
            if holder.oldest is None:
                self.dead.popleft()
        while records > 0 and self._max_blocks > self._bound:
            excess = max(self.blocks - self._bound, 0)
            if excess:
                leaf = self._recency.oldest().leaf
                excess -= min(excess, leaf.end - leaf.start)
            self._max_blocks = self._bound + excess
            self._evict_oldest()
            records -= 1

    def clear(self) -> None:
        """Drop everything at once."""
        self.tree = Tree()
        self._recency = Recency()
        self.dead.clear()
        self.blocks = 0

    def _trim(self, holder: Holder) -> None:
        """Evict what goes beyond a holder's capacity, and beyond the bound."""
        if holder.span > holder.limit:
            self.evict(holder)
        if self.blocks > self._max_blocks:
            self._evict_oldest()

    def evict(self, holder: Holder) -> None:
        """Evict until the holder is within its capacity."""
        scale = self._scale
        while (excess := holder.span - holder.limit) > 0:
            touch = holder.oldest
            assert touch is not None, "what holds nothing is within its capacity"
            leaf = touch.leaf
            keep = max(scale.blocks(max(scale.span(leaf.end) - excess, 0)), leaf.start)
            at = (keep - leaf.start) * HASH_BYTES
            holder.note_evicted(leaf.edge[at : at + HASH_BYTES], touch.accepted)
            self.evicted += leaf.end - keep
            self._release(holder, leaf, keep - leaf.start)

    def _evict_oldest(self) -> None:
        """Evict until the index is within its bound: the dead first, then the least recent."""
        while self.dead and self.blocks > self._max_blocks:
            self.reclaim(1)
        while (excess := self.blocks - self._max_blocks) > 0:
            touch = self._recency.oldest()
            leaf = touch.leaf
            keep = max(leaf.end - excess, leaf.start)
            self.evicted += leaf.end - keep
            self._release(touch.holder, leaf, keep - leaf.start)

    def _added(self, touch: Touch, held: int, total: int, newer: Touch | None = None) -> None:
        """A touch is in the tree, and its holder holds the blocks from `held` to `total` more."""
        holder = touch.holder
        holder.link(touch, newer)
        if touch.older is None:
            self._recency.note(holder)
        holder.blocks += total - held
        holder.span += self._scale.span(total) - self._scale.span(held)
        self.blocks += total - held

    def _release(self, holder: Holder, node: Node, keep: int) -> None:
        """Let `holder` hold only the first `keep` blocks of `node`, the deepest that its touch
        and the holder have on that path."""
        tree, scale = self.tree, self._scale
        cut, end = node.start + keep, node.end
        holder.blocks -= end - cut
        holder.span -= scale.span(end) - scale.span(cut)
        self.blocks -= end - cut
        if keep and len(node.holders) == 1:
            tree.shorten(node, keep)
            return
        if keep:
            tree.split(node, keep)
        touch = node.holders.pop(holder)
        _settle(node, holder)
        parent = node.parent
        assert parent is not None, "the root has no holders"
        if parent.holders.get(holder) is touch:
            touch.leaf = parent
        else:
            holder.retire(touch)
        if node.holders:
            tree.merge(node)
        else:
            tree.remove(node)


def _settle(node: Node, holder: Holder) -> None:
    """`holder` no longer has `node` tentatively."""
    if node.pending:
        node.pending.pop(holder, None)
        if not node.pending:
            node.pending = None
