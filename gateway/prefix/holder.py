"""What the index knows about one backend's cache, from one start of its engine to the next."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.prefix.tree import Node


class Touch:
    """One use of a chain by one holder: the record that all nodes last used by it share.

    The blocks that a touch still stands for lie in one run on one path: later touches take the
    head of a path away from it, eviction its tail. So the deepest node says where all of it is,
    touches in order of their making are the LRU order of the blocks, and splitting or merging
    nodes changes neither.

    Attributes:
        accepted: the holder's `accepted` at the time.
        leaf: deepest node that still has this record.
    """

    __slots__ = ("accepted", "holder", "leaf")

    def __init__(self, holder: Holder, leaf: Node) -> None:
        self.holder = holder
        self.accepted = holder.accepted
        self.leaf = leaf


class Holder:
    """One incarnation of a backend. A reset or removal ends it; what it held is dead at once.

    Attributes:
        id: the backend's.
        live: false once the incarnation is over.
        limit: capacity in key bytes.
        longest: blocks of the longest chain that can be held at all.
        blocks: blocks held.
        span: key bytes held.
        accepted: key bytes that the backend is known to have cached so far, in total.
        stale: a touch is beyond doubt when its `accepted` is above this.
        touches: the touches that still stand for blocks, least recent first.
    """

    __slots__ = (
        "accepted",
        "blocks",
        "id",
        "limit",
        "live",
        "longest",
        "span",
        "stale",
        "touches",
    )

    def __init__(self, id: str, limit: int, longest: int) -> None:
        self.id = id
        self.live = True
        self.blocks = 0
        self.span = 0
        self.accepted = 0
        self.touches: OrderedDict[Touch, None] = OrderedDict()
        self.resize(limit, longest)

    def resize(self, limit: int, longest: int) -> None:
        self.limit = limit
        self.longest = longest
        self.accept(0)

    def accept(self, span: int) -> None:
        """The backend has cached `span` more key bytes."""
        self.accepted += span
        # What was cached since is no ground for doubt below half of the capacity.
        self.stale = self.accepted - self.limit / 2

    def oldest(self) -> Touch:
        """The least recent touch; its leaf is a leaf of all that the holder has."""
        return next(iter(self.touches))


class Booking:
    """A chain booked on a backend, to be confirmed or withdrawn; only the first of these counts.

    Attributes:
        holder: the incarnation of the backend it was made on.
        chain: what was booked: the part of the chain that the backend can hold at all.
        open: neither confirmed nor withdrawn yet.
        tentative: some of the chain was not known for certain when it was booked.
    """

    __slots__ = ("chain", "holder", "open", "tentative")

    def __init__(self, holder: Holder, chain: bytes) -> None:
        self.holder = holder
        self.chain = chain
        self.open = True
        self.tentative = False

    @property
    def backend_id(self) -> str:
        return self.holder.id
