"""The feed between replicas in virtual time: it carries the bytes that the live one carries."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from math import inf

from gateway.shared.records import ORIGIN_BYTES, Kind, Origin, Subscriber
from loadtests.replicas.sharing import Sharing
from loadtests.replicas.tally import Tally
from loadtests.sim.timeline import Timeline


class VirtualFeed:
    """
    Args:
        tally: counts what is published.
    """

    def __init__(self, sharing: Sharing, timeline: Timeline, tally: Tally) -> None:
        self._tally = tally
        self._sharing = sharing
        self._timeline = timeline
        self._members: list[Member] = []
        self._sent: deque[tuple[float, Member, Kind, bytes]] = deque()

    def join(self) -> Member:
        number = len(self._members).to_bytes(2, "big")
        member = Member(self, number * (ORIGIN_BYTES // len(number)))
        self._members.append(member)
        return member

    def send(self, sender: Member, kind: Kind, record: bytes) -> None:
        """Deliver a record to all members but its sender once it is due."""
        self._tally.records[kind] += 1
        self._tally.bytes[kind] += len(record)
        due = self._sharing.due(self._timeline.time())
        if due == inf or len(self._members) == 1:
            return
        if not self._sent:
            self._timeline.call_at(due, self._deliver)
        self._sent.append((due, sender, kind, record))

    def _deliver(self) -> None:
        now, sent = self._timeline.time(), self._sent
        while sent and sent[0][0] <= now:
            _, sender, kind, record = sent.popleft()
            for member in self._members:
                if member is not sender:
                    member.hear(kind, record, sender.origin)
        if sent:
            self._timeline.call_at(sent[0][0], self._deliver)


class Member:
    """One replica's end of the feed; satisfies `gateway.shared.records.Publisher`."""

    def __init__(self, feed: VirtualFeed, origin: Origin) -> None:
        self.origin = origin
        self._feed = feed
        self._subscribers: dict[Kind, list[Subscriber]] = {}

    def subscribe(self, subscribers: Iterable[Subscriber]) -> None:
        for subscriber in subscribers:
            for kind in subscriber.kinds:
                self._subscribers.setdefault(kind, []).append(subscriber)

    def publish(self, kind: Kind, record: bytes) -> None:
        self._feed.send(self, kind, record)

    def hear(self, kind: Kind, record: bytes, origin: Origin) -> None:
        """Raises:
        BadRecord: what another member published cannot be read.
        """
        for subscriber in self._subscribers.get(kind, ()):
            subscriber.apply(kind, record, origin)
