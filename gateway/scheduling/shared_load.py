"""The load that replicas have in common: each counts the others' leases as its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from gateway.scheduling.lease import Lease
from gateway.scheduling.lease_record import (
    Began,
    Ended,
    Event,
    Listing,
    Taken,
    backend_key,
    decode,
    encode,
)
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.remote_lease import RemoteLease
from gateway.scheduling.speeds import Speeds
from gateway.shared.records import Kind, Origin, Publisher
from gateway.types import Clock
from policies.base import Policy, SharedPolicy

logger = logging.getLogger("prefixgate.scheduling")

LISTED = 256
"""Leases in one record at most, so that none is large."""


class _Replica:
    """What is known of another replica's leases.

    Each is known by its number, and a number that has ended never comes back: what is heard twice,
    late or out of order changes nothing, and what is not heard at all is put right by the next
    listing.

    Attributes:
        leases: those that are out, by number.
    """

    __slots__ = ("_ended", "_listed", "_speeds", "_turn", "leases")

    def __init__(self, speeds: Speeds | None) -> None:
        self._speeds = speeds
        self.leases: dict[int, RemoteLease] = {}
        self._ended: set[int] = set()
        """Those that the last listing did not yet know had ended."""
        self._listed = 0
        self._turn = 0

    def take(self, taken: Taken) -> bool:
        """Whether it is news."""
        number = taken.number
        if number <= self._listed or number in self._ended or number in self.leases:
            return False
        self.leases[number] = RemoteLease(taken, self._speeds)
        return True

    def end(self, number: int) -> RemoteLease | None:
        """Strike out a lease, heard of before or not."""
        self._ended.add(number)
        return self.leases.pop(number, None)

    def list_(self, listing: Listing) -> list[RemoteLease]:
        """Set which leases are out.

        Returns:
            Those that are not any more.
        """
        if listing.turn <= self._turn:
            return []
        self._turn = listing.turn
        out = {taken.number: taken for taken in listing.leases}
        ended = [
            self.leases.pop(number)
            for number in tuple(self.leases)
            if listing.after < number <= listing.last and number not in out
        ]
        for number, taken in out.items():
            if number not in self._ended and number not in self.leases:
                self.leases[number] = RemoteLease(taken, self._speeds)
        self._listed = max(self._listed, listing.last)
        # What this listing leaves out no later one has.
        self._ended = {
            number
            for number in self._ended
            if number in out or not listing.after < number <= listing.last
        }
        return ended


class SharedLoad:
    """Tells the other replicas of this one's leases, and counts theirs in the ledgers, so that
    policies, gate, limits and what engines report are held against all of them together.

    It is a `Journal` of this replica's leases and a `Subscriber` to the others'. What it holds of
    another goes with that replica (`gone`); the listings that each gives out now and then bound for
    how long a lost record can leave a count wrong. Leases at backends that are not known here are
    kept, and count once the backend is.

    A replica lags behind the others by the way of a record, some 10 ms: as long as that, several
    can send to the backend that is idle. What must hold exactly is not left to this.

    Args:
        policy: the policy of the moment; one that is a `SharedPolicy` hears what others placed.
        speeds: of the backends here. They must hear of what others send there too: held against
            this replica's prompts alone, an engine would seem as many times slower as there are
            replicas.
    """

    def __init__(
        self,
        publisher: Publisher,
        clock: Clock,
        policy: Callable[[], Policy],
        speeds: Speeds | None = None,
    ) -> None:
        self._publisher = publisher
        self._clock = clock
        self._policy = policy
        self._speeds = speeds
        self._asked: Policy | None = None
        self._shared: SharedPolicy | None = None
        self._ledgers: dict[int, BackendLoad] = {}
        self._keys: dict[str, int] = {}
        self._number = 0
        self._turn = 0
        self._own: dict[Lease, Taken] = {}
        self._replicas: dict[Origin, _Replica] = {}

    @property
    def elsewhere(self) -> int:
        """Leases of other replicas that are known of."""
        return sum(len(replica.leases) for replica in self._replicas.values())

    def attach(self, load: BackendLoad) -> None:
        """Share a backend's ledger from now on. Leases that are out already stay this replica's
        secret."""
        key = self._keys[load.id] = backend_key(load.id)
        self._ledgers[key] = load
        load.journal = self
        now = self._clock()
        for lease in self._elsewhere():
            if lease.backend == key:
                lease.enter(load, now)

    def detach(self, load: BackendLoad) -> None:
        """Leave a ledger with this replica's leases alone."""
        del self._ledgers[self._keys.pop(load.id)]
        load.journal = None
        now = self._clock()
        for lease in self._elsewhere():
            if lease.load is load:
                lease.leave(now)

    # what this replica tells: a `Journal`

    def taken(self, lease: Lease, anchor: bytes) -> None:
        self._number += 1
        sharing = self._sharing()
        taken = Taken(
            self._number,
            self._keys[lease.backend_id],
            lease.work_class == "prefill",
            lease.prompt_tokens,
            lease.uncached_tokens,
            round(lease.prefill_seconds * 1e6),
            anchor,
            sharing.note() if sharing is not None else b"",
        )
        self._own[lease] = taken
        self._publish(taken)
        taken.note = b""

    def began(self, lease: Lease) -> None:
        taken = self._own.get(lease)
        if taken is not None:
            taken.began = True
            age = max(0, round((self._clock() - lease.granted_at) * 1e3))
            self._publish(Began(taken.number, age))

    def ended(self, lease: Lease) -> None:
        taken = self._own.pop(lease, None)
        if taken is not None:
            self._publish(Ended(taken.number))

    def state(self) -> Iterator[tuple[Kind, bytes]]:
        """Records that list all of this replica's leases, to be published in this order at once.
        To be called with every heartbeat, also when there are none."""
        now = self._clock()
        for lease, taken in self._own.items():
            taken.age = max(0, round((now - lease.granted_at) * 1e3))
        leases = list(self._own.values())
        after = 0
        for start in range(0, len(leases) or 1, LISTED):
            part = leases[start : start + LISTED]
            is_last = start + LISTED >= len(leases)
            last = self._number if is_last else part[-1].number
            self._turn += 1
            yield Kind.LOAD, encode((Listing(self._turn, after, last, part),))
            after = last

    def _publish(self, event: Event) -> None:
        self._publisher.publish(Kind.LOAD, encode((event,)))

    # what it hears: a `Subscriber`

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset((Kind.LOAD,))

    def apply(self, kind: Kind, record: bytes, origin: Origin) -> None:
        events = decode(record)
        replica = self._replicas.get(origin)
        if replica is None:
            replica = self._replicas[origin] = _Replica(self._speeds)
        now = self._clock()
        roomier: dict[BackendLoad | None, None] = {}
        for event in events:
            match event:
                case Taken():
                    if replica.take(event):
                        self._enter(replica.leases[event.number], now)
                        if event.note:
                            self._note(event, now)
                case Began():
                    if (lease := replica.leases.get(event.number)) is not None:
                        roomier[lease.first_token(now, event.age / 1e3)] = None
                case Ended():
                    if (lease := replica.end(event.number)) is not None:
                        roomier[lease.leave(now)] = None
                case Listing():
                    self._list(replica, event, now, roomier)
        self._offer(roomier)

    def missed(self, origin: Origin) -> None:
        """The replica's next listing tells what was in the records that are lost."""

    def gone(self, origin: Origin) -> None:
        replica = self._replicas.pop(origin, None)
        if replica is not None:
            now = self._clock()
            self._offer({lease.leave(now): None for lease in replica.leases.values()})

    def _list(
        self,
        replica: _Replica,
        listing: Listing,
        now: float,
        roomier: dict[BackendLoad | None, None],
    ) -> None:
        for ended in replica.list_(listing):
            roomier[ended.leave(now)] = None
        for taken in listing.leases:
            lease = replica.leases.get(taken.number)
            if lease is None:
                continue
            self._enter(lease, now)
            if taken.began:
                roomier[lease.first_token(now)] = None

    def _enter(self, lease: RemoteLease, now: float) -> None:
        load = self._ledgers.get(lease.backend)
        if load is not None:
            lease.enter(load, now)

    def _note(self, taken: Taken, now: float) -> None:
        load, sharing = self._ledgers.get(taken.backend), self._sharing()
        if load is None or sharing is None:
            return
        try:
            sharing.placed_elsewhere(taken.note, load, now)
        except Exception:
            # Third parties write policies.
            logger.exception("policy %s failed on another replica's note", sharing.name)

    def _sharing(self) -> SharedPolicy | None:
        policy = self._policy()
        if policy is not self._asked:
            # Kept, because to look takes longer than all the rest.
            self._asked = policy
            self._shared = policy if isinstance(policy, SharedPolicy) else None
        return self._shared

    @staticmethod
    def _offer(roomier: dict[BackendLoad | None, None]) -> None:
        """Offer what came free to tickets that wait; once everything is counted, because what they
        do then is told to the others."""
        for load in roomier:
            if load is not None:
                load.room_came_free()

    def _elsewhere(self) -> Iterator[RemoteLease]:
        for replica in self._replicas.values():
            yield from replica.leases.values()
