"""Which backend holds which prompt prefix, as far as the gateway can know."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, tanh
from typing import NamedTuple

from gateway.prefix.blocks import KEY_BYTES_PER_TOKEN, BlockScale
from gateway.prefix.capacity import MAX_RATIO, ZEROS_BEFORE_RESET, revised_limit
from gateway.prefix.holder import Booking, Holder, Touch
from gateway.prefix.journal import Journal
from gateway.prefix.recency import Recency
from gateway.prefix.tree import Node, Tree
from gateway.types import HASH_BYTES, NO_MATCH, Chain, Match

RECLAIM_PER_BOOKING = 16
"""Dead records cleared per booking: more than a booking adds, so the dead always lose ground."""

TIME_BITS = 16
"""Low bits of a time that are the replica's own: no two replicas ever count the same time."""

_STAMP = (1 << TIME_BITS) - 1

MAX_REMEMBERED = 4096
"""Epochs remembered of backends that are not in the index."""

_CONFIDENT_BLOCKS = 4
"""Blocks from which on a report of nothing cached cannot be a matter of rounding."""


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


class PrefixIndex:
    """Mirrors, per backend, the prefix cache of its engine.

    A backend holds whole prefixes: with a block also every block before it. Using a chain makes
    all of it most recent; over capacity, the least recent blocks go, tails first, as engines do.

    Args:
        scale: where the blocks of the chains end.
        max_blocks: bound of the whole index in blocks held, summed over the backends. Above it
            the least recently used blocks of any backend go.

    Attributes:
        journal: is told what other replicas should know; None where there are none.

    Raises:
        ValueError: `max_blocks` below 1.
    """

    def __init__(self, scale: BlockScale, max_blocks: int) -> None:
        self.journal: Journal | None = None
        self._scale = scale
        self._tree = Tree()
        self._backends: dict[str, Holder] = {}
        self._dead: deque[Holder] = deque()
        self._recency = Recency()
        self._time = 0
        self._epochs: dict[str, int] = {}
        self._awaited: dict[str, Holder] = {}
        self._blocks = 0
        self._evicted = 0
        self._bookings = 0
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
        self._max_blocks = max(max_blocks, self._blocks)

    def add_backend(self, id: str, capacity_tokens: float) -> None:
        """Start to track a backend; its cache is taken to be empty, unless it was awaited.

        Raises:
            ValueError: it is tracked already, or the capacity is not a positive number.
        """
        if id in self._backends:
            raise ValueError(f"backend {id!r} is in the index already")
        limit = _key_bytes(capacity_tokens)
        epoch = self._epochs.pop(id, 0)
        awaited = self._awaited.pop(id, None)
        if awaited is None:
            self._backends[id] = Holder(id, limit, self._longest(limit), epoch)
        else:
            self._backends[id] = awaited
            awaited.live = True
            awaited.stated = limit
            self.revise(awaited, awaited.limit)

    def set_capacity(self, id: str, tokens: float) -> None:
        """State a backend's capacity; what no longer fits is evicted.

        Stating the same again changes nothing, so that what was learnt about it stays.

        Raises:
            KeyError: there is no such backend.
            ValueError: the capacity is not a positive number.
        """
        holder = self._backends[id]
        limit = _key_bytes(tokens)
        if limit != holder.stated:
            holder.stated = limit
            self._resize(holder, limit)

    def learn(self, booking: Booking, cached_tokens: float) -> bool:
        """Hold what the engine says it had cached of a booked chain against what was expected.

        The backend's capacity is revised by it. An engine that reports nothing, many times in a
        row, of what must be there has lost its cache, and the backend is reset.

        Args:
            booking: of the request, resolved or not. It should be told of once.
            cached_tokens: nominal tokens.

        Returns:
            Whether the backend was reset.
        """
        holder = booking.holder
        if not holder.live:
            return False
        if cached_tokens > 0:
            holder.reports = True
            holder.zeros = 0
        elif holder.reports and _beyond_doubt(booking):
            holder.zeros += 1
            if holder.zeros >= ZEROS_BEFORE_RESET:
                self.reset_backend(holder.id)
                return True
        cached = cached_tokens * KEY_BYTES_PER_TOKEN
        known, outlived = booking.known, booking.outlived
        limit = revised_limit(self._scale, holder.limit, known, outlived, cached)
        limit = min(max(limit, holder.stated // MAX_RATIO), holder.stated * MAX_RATIO)
        if limit != holder.limit:
            self._resize(holder, limit)
            if self.journal is not None:
                self.journal.revised(holder)
        return False

    def remove_backend(self, id: str) -> None:
        """Forget a backend and all it holds. Constant time, as `reset_backend`.

        Raises:
            KeyError: there is no such backend.
        """
        holder = self._backends.pop(id)
        self._remember(id, holder.epoch)
        self._bury(holder)

    def reset_backend(self, id: str) -> None:
        """Begin a new epoch: the engine has restarted or flushed, its cache is empty.

        Constant time. What the backend held is never matched again; the memory is given back
        in small steps by the bookings that follow, or by `reclaim`.

        Raises:
            KeyError: there is no such backend.
        """
        self.begin_epoch(id, self._backends[id].epoch + 1)
        if self.journal is not None:
            self.journal.reset(self._backends[id])

    def match(self, chain: Chain) -> Match:
        """What each backend is believed to hold of `chain`."""
        path, depth = self._tree.walk(chain)
        blocks: dict[str, int] = {}
        tokens: dict[str, float] = {}
        # From the deepest node up: a holder met for the first time holds exactly up to there.
        for node in reversed(path):
            whole = self._scale.tokens(depth)
            for holder, touch in node.holders.items():
                id = holder.id
                if id in blocks or not holder.live:
                    continue
                blocks[id] = depth
                # Records grow older with depth: where the last is fresh, so are the others.
                fresh = touch.accepted > holder.stale
                tokens[id] = whole if fresh else self._expected(holder, path, depth)
            depth = node.start
        return Match(blocks, tokens) if blocks else NO_MATCH

    def book(self, id: str, chain: Chain) -> Booking:
        """Expect a backend to hold `chain` from now on, subject to the booking's outcome.

        What it does not hold yet is held tentatively; all of it becomes most recent. Of a chain
        that is larger than the backend's cache, the head that fits is booked.

        Raises:
            KeyError: there is no such backend.
        """
        holder = self._backends[id]
        if self._dead:
            self.reclaim(RECLAIM_PER_BOOKING)
        self._time = time = self._time + (1 << TIME_BITS)
        booking = Booking(holder, chain[: holder.longest * HASH_BYTES], time)
        self._bookings += 1
        if booking.chain:
            self._insert(booking)
            if holder.span > holder.limit:
                self._evict(holder)
            if self._blocks > self._max_blocks:
                self._evict_oldest()
        return booking

    def confirm(self, booking: Booking) -> None:
        """The backend has accepted the work: what was tentative for this booking stays.

        What was evicted meanwhile stays evicted. Nothing happens when the booking was resolved
        before, or the backend was reset or removed since.
        """
        if self.journal is not None and booking.open and booking.holder.live:
            self._tell(self.journal, booking)
        if not self._resolve(booking):
            return
        holder, tree, span = booking.holder, self._tree, self._scale.span
        path, _ = tree.walk(booking.chain)
        accepted = 0
        for node in reversed(path):
            if node.pending and booking in node.pending.get(holder, ()):
                _settle(node, holder)
                accepted += span(node.end) - span(node.start)
            tree.merge(node)
        holder.accept(accepted)

    def withdraw(self, booking: Booking) -> None:
        """The work did not happen: what only this booking stood for is held no longer.

        Nothing happens when the booking was resolved before, or the backend was reset or removed
        since.
        """
        if not self._resolve(booking):
            return
        holder, tree = booking.holder, self._tree
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

    def reclaim(self, records: int) -> None:
        """Clear up to `records` records out of the tree: those of removed and reset backends, then
        what is over a bound that was lowered."""
        while self._dead and records > 0:
            holder = self._dead[0]
            assert holder.oldest is not None, "the dead that hold nothing are not kept"
            self._release(holder, holder.oldest.leaf, 0)
            records -= 1
            if holder.oldest is None:
                self._dead.popleft()
        while records > 0 and self._max_blocks > self._bound:
            excess = max(self._blocks - self._bound, 0)
            if excess:
                leaf = self._recency.oldest().leaf
                excess -= min(excess, leaf.end - leaf.start)
            self._max_blocks = self._bound + excess
            self._evict_oldest()
            records -= 1

    def flush(self) -> None:
        """Begin a new epoch for every backend and drop the tree."""
        self._tree = Tree()
        self._recency = Recency()
        self._dead.clear()
        self._awaited.clear()
        self._blocks = 0
        for id, old in self._backends.items():
            old.live = False
            self._backends[id] = old.successor()
        if self.journal is not None:
            self.journal.flushed()

    # what other replicas have learnt

    @property
    def tree(self) -> Tree:
        """To be read only."""
        return self._tree

    def holders(self) -> Iterable[Holder]:
        """One per backend. To be read only."""
        return self._backends.values()

    def holder(self, id: str) -> Holder | None:
        """A backend's present incarnation, also of one that is awaited. To be read only."""
        return self._backends.get(id) or self._awaited.get(id)

    def expect_backend(self, id: str, limit: int, epoch: int) -> Holder:
        """Let others' uses be held for a backend that is likely to be added soon. Until then it
        is never matched.

        Args:
            limit: capacity in key bytes.
        """
        epoch = max(epoch, self._epochs.pop(id, 0))
        holder = self._awaited[id] = Holder(id, limit, self._longest(limit), epoch)
        holder.live = False
        return holder

    def give_up(self) -> None:
        """Forget the backends that were awaited and have not come. Constant time for each."""
        for id, holder in self._awaited.items():
            self._remember(id, holder.epoch)
            self._bury(holder)
        self._awaited.clear()

    def set_stamp(self, stamp: int) -> None:
        """Count times that no other replica counts.

        Args:
            stamp: of this replica; `TIME_BITS` bits.
        """
        self._time = self._time >> TIME_BITS << TIME_BITS | stamp

    def hold(
        self,
        holder: Holder,
        chain: Chain,
        time: int,
        age: int | None = None,
        newer: Touch | None = None,
    ) -> Touch:
        """A backend has used, and holds, `chain`: another replica had it booked and confirmed.

        The same as to book and confirm it here, except that what was used later than at `time`
        stays as recent as it is. Told twice, it changes nothing the second time.

        Args:
            age: key bytes that the backend has cached since; None for a use that has its part in
                that itself.
            newer: a touch of the holder that is likely to be more recent, where to begin to look
                for this one's place.

        Returns:
            The record of this use; retired when it stands for nothing.
        """
        self._time = max(self._time, time >> TIME_BITS << TIME_BITS | self._time & _STAMP)
        if self._dead:
            self.reclaim(RECLAIM_PER_BOOKING)
        tree, span = self._tree, self._scale.span
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
        if holder.span > holder.limit:
            self._evict(holder)
        if self._blocks > self._max_blocks:
            self._evict_oldest()
        return touch

    def begin_epoch(self, id: str, epoch: int) -> None:
        """Have a backend's cache empty from `epoch` on, unless it is as far already. A backend
        that is not there begins with it when it comes."""
        old = self._backends.get(id)
        if old is None:
            awaited = self._awaited.get(id)
            if awaited is not None and awaited.epoch < epoch:
                self._bury(self._awaited.pop(id))
            self._remember(id, epoch)
        elif old.epoch < epoch:
            new = self._backends[id] = old.successor()
            new.epoch = epoch
            self._bury(old)

    def revise(self, holder: Holder, limit: int) -> None:
        """Believe what another replica has learnt of a backend's capacity.

        Args:
            limit: key bytes.
        """
        limit = min(max(limit, holder.stated // MAX_RATIO), holder.stated * MAX_RATIO)
        if limit != holder.limit:
            self._resize(holder, limit)

    def stats(self) -> IndexStats:
        """The index in numbers, at this moment."""
        held = sum(holder.blocks for holder in self._backends.values())
        return IndexStats(
            nodes=self._tree.nodes,
            blocks=self._tree.blocks,
            held_blocks=held,
            dead_blocks=self._blocks - held,
            evicted_blocks=self._evicted,
            bookings=self._bookings,
            backends={
                id: Holding(
                    holder.blocks,
                    holder.span / KEY_BYTES_PER_TOKEN,
                    holder.limit / KEY_BYTES_PER_TOKEN,
                )
                for id, holder in self._backends.items()
            },
        )

    def _resize(self, holder: Holder, limit: int) -> None:
        holder.resize(limit, self._longest(limit))
        self._evict(holder)

    def _tell(self, journal: Journal, booking: Booking) -> None:
        """Report a booking that is being confirmed, as far as its backend still holds it."""
        holder = booking.holder
        path, shared = self._tree.walk(booking.chain)
        held = known = 0
        for node in path:
            pending = node.pending
            if holder not in node.holders or (
                pending and holder in pending and booking not in pending[holder]
            ):
                break
            held = min(node.end, shared)
            if known == node.start and any(
                each.live and not (pending and each in pending) for each in node.holders
            ):
                known = held
        if held:
            journal.used(holder, booking.chain[: held * HASH_BYTES], booking.time, path, known)

    def _remember(self, id: str, epoch: int) -> None:
        epochs = self._epochs
        epochs[id] = max(epoch, epochs.pop(id, 0))
        if len(epochs) > MAX_REMEMBERED:
            del epochs[next(iter(epochs))]

    def _longest(self, limit: int) -> int:
        return min(self._scale.blocks(limit), self._max_blocks)

    def _bury(self, holder: Holder) -> None:
        holder.live = False
        if holder.oldest is not None:
            self._dead.append(holder)

    def _expected(self, holder: Holder, path: list[Node], depth: int) -> float:
        """Tokens of the first `depth` blocks of `path`, each weighted by its confidence.

        Confidence is near 1 while the backend has cached little since the last use, and one half
        once that has come to its capacity.
        """
        tokens, limit, stale = self._scale.tokens, holder.limit, holder.stale
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

    def _insert(self, booking: Booking) -> None:
        holder, chain, tree = booking.holder, booking.chain, self._tree
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

    def _added(self, touch: Touch, held: int, total: int, newer: Touch | None = None) -> None:
        """A touch is in the tree, and its holder holds the blocks from `held` to `total` more."""
        holder = touch.holder
        holder.link(touch, newer)
        if touch.older is None:
            self._recency.note(holder)
        holder.blocks += total - held
        holder.span += self._scale.span(total) - self._scale.span(held)
        self._blocks += total - held

    def _resolve(self, booking: Booking) -> bool:
        """Close the booking; whether there is something left to settle in the tree."""
        if not booking.open:
            return False
        booking.open = False
        self._bookings -= 1
        return booking.tentative and booking.holder.live

    def _evict(self, holder: Holder) -> None:
        """Evict until the holder is within its capacity."""
        scale = self._scale
        while (excess := holder.span - holder.limit) > 0:
            touch = holder.oldest
            assert touch is not None, "what holds nothing is within its capacity"
            leaf = touch.leaf
            keep = max(scale.blocks(max(scale.span(leaf.end) - excess, 0)), leaf.start)
            at = (keep - leaf.start) * HASH_BYTES
            holder.note_evicted(leaf.edge[at : at + HASH_BYTES], touch.accepted)
            self._evicted += leaf.end - keep
            self._release(holder, leaf, keep - leaf.start)

    def _evict_oldest(self) -> None:
        """Evict until the index is within its bound: the dead first, then the least recent."""
        while self._dead and self._blocks > self._max_blocks:
            self.reclaim(1)
        while (excess := self._blocks - self._max_blocks) > 0:
            touch = self._recency.oldest()
            leaf = touch.leaf
            keep = max(leaf.end - excess, leaf.start)
            self._evicted += leaf.end - keep
            self._release(touch.holder, leaf, keep - leaf.start)

    def _release(self, holder: Holder, node: Node, keep: int) -> None:
        """Let `holder` hold only the first `keep` blocks of `node`, the deepest that its touch
        and the holder have on that path."""
        tree, scale = self._tree, self._scale
        cut, end = node.start + keep, node.end
        holder.blocks -= end - cut
        holder.span -= scale.span(end) - scale.span(cut)
        self._blocks -= end - cut
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


def _beyond_doubt(booking: Booking) -> bool:
    """Whether a good part of the chain had to be cached."""
    half = booking.holder.limit / 2
    return any(end >= _CONFIDENT_BLOCKS and since < half for end, since in booking.known)


def _settle(node: Node, holder: Holder) -> None:
    """`holder` no longer has `node` tentatively."""
    if node.pending:
        node.pending.pop(holder, None)
        if not node.pending:
            node.pending = None


def _key_bytes(tokens: float) -> int:
    if not (isfinite(tokens) and tokens > 0):
        raise ValueError(f"a capacity must be a positive number of tokens, got {tokens}")
    return int(tokens * KEY_BYTES_PER_TOKEN)
