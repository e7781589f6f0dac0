"""What the index tells of itself, for others to know as well."""

from __future__ import annotations

from typing import Protocol

from gateway.prefix.holder import Holder
from gateway.prefix.tree import Node
from gateway.types import Chain


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
