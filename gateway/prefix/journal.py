"""What the index tells of itself, for others to know as well."""

from __future__ import annotations

from typing import Protocol

from gateway.prefix.holder import Booking, Holder
from gateway.prefix.tree import Node, Tree
from gateway.types import HASH_BYTES, Chain


class Journal(Protocol):
    """Told by the index of what it learns itself, and never of what it was told. Called at once,
    so it must be quick, and may not change the index."""

    def used(self, holder: Holder, chain: Chain, time: int, path: list[Node], known: int) -> None:
        """A use was confirmed.

        Args:
            chain: what the backend holds of it.
            path: the nodes along `chain`.
            known: blocks of it that some backend was known to hold before.
        """

    def reset(self, holder: Holder) -> None:
        """A backend has begun a new epoch; `holder` is the new one."""

    def flushed(self) -> None:
        """All backends have."""

    def revised(self, holder: Holder) -> None:
        """More, or less, is believed of a backend's capacity."""


def tell(journal: Journal, tree: Tree, booking: Booking) -> None:
    """Report a booking that is being confirmed, as far as its backend still holds it."""
    holder = booking.holder
    path, shared = tree.walk(booking.chain)
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
