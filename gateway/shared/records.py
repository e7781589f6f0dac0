"""What replicas tell each other, and how the parts of a gateway take part in that.

A record has a kind and bytes that only the part it is about understands. Records of one replica
arrive in the order in which they were published, or not at all; a part is told when some are
missing. Kinds are for ever: a number is never given to something else, so that replicas of
different versions can run side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Protocol

Origin = bytes
"""Names a replica from its start to its end; `ORIGIN_BYTES` random bytes."""
ORIGIN_BYTES = 8


class Kind(IntEnum):
    """What a record is about."""

    USED = 1
    """A backend has used, and holds, a prefix."""
    RESET = 2
    """A backend's cache is empty: a new epoch."""
    CLEARED = 3
    """Prefixes are void: all of them, or one model's."""
    CAPACITY = 4
    """How much a backend's cache was found to hold."""
    WANTED = 5
    """A prefix that a record builds on is not known here: say all of it."""
    LOAD = 16
    """What a replica has under way at the backends."""
    STATE = 32
    """The stored admin state has a new version."""
    ALIVE = 48
    """A replica is there, or leaves."""


class BadRecord(ValueError):
    """A record cannot be read. It is skipped and counted; nothing has changed."""


class Publisher(Protocol):
    def publish(self, kind: Kind, record: bytes) -> None:
        """Tell the other replicas. Returns at once and never raises; what cannot be kept until it
        can be sent is dropped and counted."""


class Subscriber(Protocol):
    """A part of the gateway that other replicas' records are for. Called on the event loop."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """Those it wants to hear of."""

    def apply(self, kind: Kind, record: bytes, origin: Origin) -> None:
        """Take in another replica's record.

        Raises:
            BadRecord: it cannot be read.
        """

    def missed(self, origin: Origin) -> None:
        """Records of a replica are lost; what follows may build on them."""

    def gone(self, origin: Origin) -> None:
        """A replica has ended or is silent for longer than its lease."""


class Heartbeat(Protocol):
    """A part that says all of its state with every sign of life of its replica, so that what was
    lost or came twice is put right by what follows."""

    def state(self) -> Iterable[tuple[Kind, bytes]]: ...


class Loader(Protocol):
    """Takes in one snapshot, on top of what is known already: what was made void here since then
    stays void. Each step takes a few milliseconds at most."""

    def feed(self, chunk: bytes) -> None:
        """The next chunk, in order.

        Raises:
            BadRecord: it cannot be read. No more chunks follow.
        """

    def finish(self) -> None:
        """There are no more chunks.

        Raises:
            BadRecord: there should have been.
        """


class Snapshotter(Protocol):
    """The part whose state replicas start from."""

    def dump(self) -> Iterator[bytes]:
        """All of its state in chunks of some 64 KiB. Each step takes a few milliseconds at most,
        and the state may change between them: what it becomes is told in records."""

    def loader(self) -> Loader: ...


class Away(Exception):
    """Redis does not answer, or is not asked because it did not lately."""


class Refused(Exception):
    """Redis answered with an error. Its message starts with Redis's own error code."""


class Commands(Protocol):
    """The one way to Redis, as its users see it. No command is ever cancelled half way: a caller
    that goes away stops waiting, nothing more."""

    @property
    def up(self) -> bool:
        """Whether commands are sent at all. While not, they raise `Away` at once."""

    def key(self, *parts: str) -> bytes:
        """A key's full name: namespace, the hash tag that all keys share, then the parts."""

    async def call(self, *words: bytes | str | int | float, timeout: float | None = None) -> Any:
        """One command; replies are bytes, ints, lists and None.

        Args:
            timeout: seconds to wait at most, the configured one when None.

        Raises:
            Away, Refused.
        """

    async def run(
        self,
        script: str,
        keys: list[bytes],
        words: list[bytes | str | int | float],
        timeout: float | None = None,
    ) -> Any:
        """One Lua script, atomically, as `call`. It is sent in full only where Redis has not seen
        it."""
