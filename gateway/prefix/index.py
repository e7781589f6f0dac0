"""Which backend holds which prompt prefix, as far as the gateway can know."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from gateway.prefix.blocks import KEY_BYTES_PER_TOKEN, BlockScale
from gateway.prefix.capacity import MAX_RATIO, ZEROS_BEFORE_RESET, beyond_doubt, revised_limit
from gateway.prefix.confidence import expected_tokens
from gateway.prefix.holder import Booking, Holder, Touch
from gateway.prefix.holdings import Holdings
from gateway.prefix.incarnations import Incarnations
from gateway.prefix.journal import Journal, tell
from gateway.prefix.stats import Holding, IndexStats
from gateway.prefix.tree import Tree
from gateway.types import HASH_BYTES, NO_MATCH, Chain, Match

RECLAIM_PER_BOOKING = 16
"""Dead records cleared per booking: more than a booking adds, so the dead always lose ground."""

TIME_BITS = 16
"""Low bits of a time that are the replica's own: no two replicas ever count the same time."""

_STAMP = (1 << TIME_BITS) - 1


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
        self._holdings = Holdings(scale, max_blocks)
        self._incarnations = Incarnations(self._holdings)
        self._present = self._incarnations.present
        self._time = 0
        self._bookings = 0

    def set_max_blocks(self, max_blocks: int) -> None:
        """Change the bound. To a lower one the index comes bit by bit, with each `reclaim`: all at
        once would take too long.

        Raises:
            ValueError: below 1.
        """
        self._holdings.set_max_blocks(max_blocks)

    def add_backend(self, id: str, capacity_tokens: float) -> None:
        """Start to track a backend; its cache is taken to be empty, unless it was awaited.

        Raises:
            ValueError: it is tracked already, or the capacity is not a positive number.
        """
        limit = _key_bytes(capacity_tokens)
        holder, awaited = self._incarnations.add(id, limit)
        if awaited:
            holder.stated = limit
            self.revise(holder, holder.limit)

    def set_capacity(self, id: str, tokens: float) -> None:
        """State a backend's capacity; what no longer fits is evicted.

        Stating the same again changes nothing, so that what was learnt about it stays.

        Raises:
            KeyError: there is no such backend.
            ValueError: the capacity is not a positive number.
        """
        holder = self._present[id]
        limit = _key_bytes(tokens)
        if limit != holder.stated:
            holder.stated = limit
            self._holdings.resize(holder, limit)

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
        elif holder.reports and beyond_doubt(holder.limit, booking.known):
            holder.zeros += 1
            if holder.zeros >= ZEROS_BEFORE_RESET:
                self.reset_backend(holder.id)
                return True
        cached = cached_tokens * KEY_BYTES_PER_TOKEN
        known, outlived = booking.known, booking.outlived
        limit = revised_limit(self._scale, holder.limit, known, outlived, cached)
        if self.revise(holder, limit) and self.journal is not None:
            self.journal.revised(holder)
        return False

    def remove_backend(self, id: str) -> None:
        """Forget a backend and all it holds. Constant time, as `reset_backend`.

        Raises:
            KeyError: there is no such backend.
        """
        self._incarnations.remove(id)

    def reset_backend(self, id: str) -> None:
        """Begin a new epoch: the engine has restarted or flushed, its cache is empty.

        Constant time. What the backend held is never matched again; the memory is given back
        in small steps by the bookings that follow, or by `reclaim`.

        Raises:
            KeyError: there is no such backend.
        """
        self.begin_epoch(id, self._present[id].epoch + 1)
        if self.journal is not None:
            self.journal.reset(self._present[id])

    def match(self, chain: Chain) -> Match:
        """What each backend is believed to hold of `chain`."""
        path, depth = self._holdings.tree.walk(chain)
        blocks: dict[str, int] = {}
        tokens: dict[str, float] = {}
        scale = self._scale
        # From the deepest node up: a holder met for the first time holds exactly up to there.
        for node in reversed(path):
            whole = scale.tokens(depth)
            for holder, touch in node.holders.items():
                id = holder.id
                if id in blocks or not holder.live:
                    continue
                blocks[id] = depth
                # Records grow older with depth: where the last is fresh, so are the others.
                fresh = touch.accepted > holder.stale
                tokens[id] = whole if fresh else expected_tokens(scale, holder, path, depth)
            depth = node.start
        return Match(blocks, tokens) if blocks else NO_MATCH

    def book(self, id: str, chain: Chain) -> Booking:
        """Expect a backend to hold `chain` from now on, subject to the booking's outcome.

        What it does not hold yet is held tentatively; all of it becomes most recent. Of a chain
        that is larger than the backend's cache, the head that fits is booked.

        Raises:
            KeyError: there is no such backend.
        """
        holder, holdings = self._present[id], self._holdings
        if holdings.dead:
            holdings.reclaim(RECLAIM_PER_BOOKING)
        self._time = time = self._time + (1 << TIME_BITS)
        booking = Booking(holder, chain[: holder.longest * HASH_BYTES], time)
        self._bookings += 1
        if booking.chain:
            holdings.book(booking)
        return booking

    def confirm(self, booking: Booking) -> None:
        """The backend has accepted the work: what was tentative for this booking stays.

        What was evicted meanwhile stays evicted. Nothing happens when the booking was resolved
        before, or the backend was reset or removed since.
        """
        journal = self.journal
        if journal is not None and booking.open and booking.holder.live:
            tell(journal, self._holdings.tree, booking)
        if self._resolve(booking):
            self._holdings.confirm(booking)

    def withdraw(self, booking: Booking) -> None:
        """The work did not happen: what only this booking stood for is held no longer.

        Nothing happens when the booking was resolved before, or the backend was reset or removed
        since.
        """
        if self._resolve(booking):
            self._holdings.withdraw(booking)

    def reclaim(self, records: int) -> None:
        """Clear up to `records` records out of the tree: those of removed and reset backends, then
        what is over a bound that was lowered."""
        self._holdings.reclaim(records)

    def flush(self) -> None:
        """Begin a new epoch for every backend and drop the tree."""
        self._holdings.clear()
        self._incarnations.flush()
        if self.journal is not None:
            self.journal.flushed()

    # what other replicas have learnt

    @property
    def tree(self) -> Tree:
        """To be read only."""
        return self._holdings.tree

    def holders(self) -> Iterable[Holder]:
        """One per backend. To be read only."""
        return self._present.values()

    def holder(self, id: str) -> Holder | None:
        """A backend's present incarnation, also of one that is awaited. To be read only."""
        return self._incarnations.find(id)

    def expect_backend(self, id: str, limit: int, epoch: int) -> Holder:
        """Let others' uses be held for a backend that is likely to be added soon. Until then it
        is never matched.

        Args:
            limit: capacity in key bytes.
        """
        return self._incarnations.await_backend(id, limit, epoch)

    def give_up(self) -> None:
        """Forget the backends that were awaited and have not come. Constant time for each."""
        self._incarnations.give_up()

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
        holdings = self._holdings
        if holdings.dead:
            holdings.reclaim(RECLAIM_PER_BOOKING)
        return holdings.hold(holder, chain, time, age, newer)

    def begin_epoch(self, id: str, epoch: int) -> None:
        """Have a backend's cache empty from `epoch` on, unless it is as far already. A backend
        that is not there begins with it when it comes."""
        self._incarnations.begin(id, epoch)

    def revise(self, holder: Holder, limit: int) -> bool:
        """Believe what was learnt of a backend's capacity.

        Args:
            limit: key bytes.

        Returns:
            Whether that is anything new.
        """
        limit = min(max(limit, holder.stated // MAX_RATIO), holder.stated * MAX_RATIO)
        if limit == holder.limit:
            return False
        self._holdings.resize(holder, limit)
        return True

    def stats(self) -> IndexStats:
        """The index in numbers, at this moment."""
        holdings, tree = self._holdings, self._holdings.tree
        held = sum(holder.blocks for holder in self._present.values())
        return IndexStats(
            nodes=tree.nodes,
            blocks=tree.blocks,
            held_blocks=held,
            dead_blocks=holdings.blocks - held,
            evicted_blocks=holdings.evicted,
            bookings=self._bookings,
            backends={
                id: Holding(
                    holder.blocks,
                    holder.span / KEY_BYTES_PER_TOKEN,
                    holder.limit / KEY_BYTES_PER_TOKEN,
                )
                for id, holder in self._present.items()
            },
        )

    def _resolve(self, booking: Booking) -> bool:
        """Close the booking; whether there is something left to settle in the tree."""
        if not booking.open:
            return False
        booking.open = False
        self._bookings -= 1
        return booking.tentative and booking.holder.live


def _key_bytes(tokens: float) -> int:
    if not (isfinite(tokens) and tokens > 0):
        raise ValueError(f"a capacity must be a positive number of tokens, got {tokens}")
    return int(tokens * KEY_BYTES_PER_TOKEN)
