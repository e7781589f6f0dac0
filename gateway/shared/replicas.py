"""Which replicas are alive, by what is heard of them.

Silence means something only while this replica listens. What counts is therefore how long nothing
was heard of another *while the stream was read to its end*, on our own clock: after an outage, or
a freeze of our own, everyone has a full lease again in which to be heard. While the stream cannot
be read at all nobody can renew anything, and what the others have under way ends without our
knowing; after `ABANDON` leases it is no longer believed and all others are gone until they are
heard again. That is long enough for a failover, and short against the life of a stale load, which
would keep requests away from idle backends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from gateway.shared.records import BadRecord, Kind, Origin
from gateway.types import Clock

logger = logging.getLogger("prefixgate.shared")

ABANDON = 3
"""Leases after which a replica that cannot listen believes nothing of the others any more."""
_SERVES, _LEAVES = 0, 1
_VERSION_BYTES = 64


@dataclass(slots=True)
class Replica:
    """Attributes:
    version: of its release; "" until it said so.
    heard_at: on our clock.
    """

    version: str
    heard_at: float


def alive(version: str, leaves: bool) -> bytes:
    """The record by which a replica shows that it is there, or says that it goes."""
    return bytes((_LEAVES if leaves else _SERVES,)) + version.encode()[:_VERSION_BYTES]


class Replicas:
    """A `Subscriber` of signs of life; any batch at all is one.

    Args:
        lease: seconds.
        gone: told of each replica that is there no longer.

    Attributes:
        others: by origin.
    """

    kinds = frozenset({Kind.ALIVE})

    def __init__(self, lease: float, clock: Clock, gone: Callable[[Origin], None]) -> None:
        self._lease = lease
        self._clock = clock
        self._gone = gone
        self._listened_at = clock()
        self._since = self._listened_at
        self._outdated: set[Origin] = set()
        self.others: dict[Origin, Replica] = {}

    @property
    def patience(self) -> float:
        """Seconds until the first of the others is gone, if none is heard meanwhile; 0 when that
        depends on what the next look at the stream brings."""
        heard = min((replica.heard_at for replica in self.others.values()), default=self._clock())
        return max(0.0, max(heard, self._since) + self._lease - self._clock())

    def heard(self, origin: Origin, age: float) -> None:
        """A batch of a replica is there.

        Args:
            age: seconds for which it had been in the stream when this replica began to catch up;
                0 for what came since.
        """
        if age > self._lease:
            self._outdated.add(origin)
            return
        self._outdated.discard(origin)
        replica = self.others.get(origin)
        if replica is None:
            self.others[origin] = Replica("", self._clock())
            logger.info("another replica is there: %d with this one", self._count())
        else:
            replica.heard_at = self._clock()

    def apply(self, kind: Kind, record: bytes, origin: Origin) -> None:
        if not record or record[0] not in (_SERVES, _LEAVES):
            raise BadRecord(f"a sign of life begins with {record[:1]!r}")
        try:
            version = record[1 : 1 + _VERSION_BYTES].decode()
        except UnicodeDecodeError as error:
            raise BadRecord("a sign of life has a version that is no text") from error
        if record[0] == _LEAVES:
            if self._end(origin):
                logger.info("a replica has stopped: %d with this one", self._count())
        elif (replica := self.others.get(origin)) is not None:
            replica.version = version

    def missed(self, origin: Origin) -> None:
        """A sign of life that is lost makes no difference."""

    def gone(self, origin: Origin) -> None:
        """It is this that says so."""

    def listened(self) -> None:
        """All that is in the stream was heard. To be called at least twice a lease."""
        now = self._clock()
        if now - self._listened_at > self._lease / 2:
            self._since = now
        self._listened_at = now
        while self._outdated:
            # What it had under way when it was last heard, long before we came, was taken in.
            self._gone(self._outdated.pop())
        for origin, replica in [*self.others.items()]:
            if now - max(replica.heard_at, self._since) >= self._lease:
                self._end(origin)
                logger.warning(
                    "a replica was silent for %g s and counts as gone: %d with this one",
                    self._lease,
                    self._count(),
                )

    def look(self) -> None:
        """Give up the others if the stream could not be read for too long."""
        if self._clock() - self._listened_at > ABANDON * self._lease:
            if self.others:
                logger.warning("nothing was heard of the other replicas for too long: all are gone")
            for origin in [*self.others]:
                self._end(origin)

    def _count(self) -> int:
        return len(self.others) + 1

    def _end(self, origin: Origin) -> bool:
        """Whether it was there."""
        if self.others.pop(origin, None) is None:
            return False
        self._gone(origin)
        return True
