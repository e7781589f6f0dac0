"""What the index knows about one backend's cache, from one start of its engine to the next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.prefix.tree import Node


MAX_EVICTED = 4096
"""Evicted runs that are remembered per backend."""


class Touch:
    """One use of a chain by one holder: the record that all nodes last used by it share.

    The blocks that a touch still stands for lie in one run on one path: later touches take the
    head of a path away from it, eviction its tail. So the deepest node says where all of it is,
    touches in order of their time are the LRU order of the blocks, and splitting or merging nodes
    changes neither.

    Attributes:
        accepted: the holder's `accepted` at the time.
        leaf: deepest node that still has this record.
        time: of the use, as the index counts time.
        older, newer: the holder's touches next to it.
        retired: it stands for nothing any more. Its `older` stays as it was.
    """

    __slots__ = ("accepted", "holder", "leaf", "newer", "older", "retired", "time")

    def __init__(self, holder: Holder, leaf: Node, time: int) -> None:
        self.holder = holder
        self.accepted = holder.accepted
        self.leaf = leaf
        self.time = time
        self.older: Touch | None = None
        self.newer: Touch | None = None
        self.retired = False


class Holder:
    """One incarnation of a backend. A reset or removal ends it; what it held is dead at once.

    Attributes:
        id: the backend's.
        epoch: counts the incarnations; a number that all replicas mean the same by.
        live: false once the incarnation is over.
        limit: capacity in key bytes.
        longest: blocks of the longest chain that can be held at all.
        blocks: blocks held.
        span: key bytes held.
        accepted: key bytes that the backend is known to have cached so far, in total.
        stale: a touch is beyond doubt when its `accepted` is above this.
        stated: the capacity in key bytes that was set, before anything was learnt about it.
        reports: the engine has reported cached tokens, so that it means something when it does not.
        zeros: times in a row that it reported none of what was beyond doubt.
        evicted: by the first block that was evicted for the capacity from a run, `accepted` at
            the run's last use.
        oldest: the least recent touch that still stands for blocks; its leaf is a leaf of all that
            the holder has.
        newest: the most recent one.
    """

    __slots__ = (
        "accepted",
        "blocks",
        "epoch",
        "evicted",
        "id",
        "limit",
        "live",
        "longest",
        "newest",
        "oldest",
        "reports",
        "span",
        "stale",
        "stated",
        "zeros",
    )

    def __init__(self, id: str, limit: int, longest: int, epoch: int = 0) -> None:
        self.id = id
        self.epoch = epoch
        self.live = True
        self.blocks = 0
        self.span = 0
        self.accepted = 0
        self.stated = limit
        self.reports = False
        self.zeros = 0
        self.evicted: dict[bytes, int] = {}
        self.oldest: Touch | None = None
        self.newest: Touch | None = None
        self.resize(limit, longest)

    def successor(self) -> Holder:
        """The next incarnation: it holds nothing, and what was learnt of the engine stays."""
        new = Holder(self.id, self.limit, self.longest, self.epoch + 1)
        new.stated = self.stated
        new.reports = self.reports
        return new

    def resize(self, limit: int, longest: int) -> None:
        self.limit = limit
        self.longest = longest
        self.accept(0)

    def accept(self, span: int) -> None:
        """The backend has cached `span` more key bytes."""
        self.accepted += span
        # What was cached since is no ground for doubt below half of the capacity.
        self.stale = self.accepted - self.limit / 2

    def note_evicted(self, first: bytes, accepted: int) -> None:
        """Remember for a while what had to go, in case that the engine still has it."""
        evicted = self.evicted
        evicted[first] = accepted
        if len(evicted) > MAX_EVICTED:
            del evicted[next(iter(evicted))]

    def touches(self) -> Iterator[Touch]:
        """Those that still stand for blocks, most recent first."""
        touch = self.newest
        while touch is not None:
            yield touch
            touch = touch.older

    def link(self, touch: Touch, newer: Touch | None = None) -> None:
        """Put a touch where its time belongs; of equal ones, the last linked is the least recent,
        because it is the one that lies deeper.

        Args:
            newer: one that is likely to be more recent, not retired, from where to look.
        """
        if newer is not None and newer.time < touch.time:
            newer = None
        older = self.newest if newer is None else newer.older
        while older is not None and older.time >= touch.time:
            newer, older = older, older.older
        touch.newer, touch.older = newer, older
        # A record is never fresher than one that is more recent.
        if older is None:
            self.oldest = touch
        else:
            older.newer = touch
            if touch.accepted < older.accepted:
                touch.accepted = older.accepted
        if newer is None:
            self.newest = touch
        else:
            newer.older = touch
            if touch.accepted > newer.accepted:
                touch.accepted = newer.accepted

    def retire(self, touch: Touch) -> None:
        """Take a touch out that stands for nothing any more."""
        newer, older = touch.newer, touch.older
        if newer is None:
            self.newest = older
        else:
            newer.older = older
        if older is None:
            self.oldest = newer
        else:
            older.newer = newer
        touch.newer = None
        touch.retired = True


class Booking:
    """A chain booked on a backend, to be confirmed or withdrawn; only the first of these counts.

    Attributes:
        holder: the incarnation of the backend it was made on.
        chain: what was booked: the part of the chain that the backend can hold at all.
        open: neither confirmed nor withdrawn yet.
        tentative: some of the chain was not known for certain when it was booked.
        time: when it was made, as the index counts time.
        known: the parts that were, from the head on: blocks up to the end of each, and the key
            bytes that the backend had cached since its last use.
        outlived: if what comes next was once held and evicted for the capacity: blocks before it,
            and key bytes cached since its last use.
    """

    __slots__ = ("chain", "holder", "known", "open", "outlived", "tentative", "time")

    def __init__(self, holder: Holder, chain: bytes, time: int) -> None:
        self.holder = holder
        self.chain = chain
        self.time = time
        self.open = True
        self.tentative = False
        self.known: list[tuple[int, int]] = []
        self.outlived: tuple[int, int] | None = None

    @property
    def backend_id(self) -> str:
        return self.holder.id
