"""Replicas for tests: a link, a feed and a part that remembers what it was told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType

from gateway.config import Redis, Replication
from gateway.shared.feed import Feed
from gateway.shared.link import Link
from gateway.shared.records import BadRecord, Kind, Origin

CHUNK = 50
FAST = Replication(lease=0.9, snapshot_interval=3600.0)


async def until(condition: Callable[[], object], timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be so in time"
        await asyncio.sleep(0.01)


class Book:
    """Subscriber, snapshotter and heartbeat: keeps the records of kind `USED` as a set would."""

    kinds = frozenset({Kind.USED, Kind.LOAD})

    def __init__(self) -> None:
        self.known: dict[bytes, None] = {}
        self.heard: list[bytes] = []
        self.loads: list[bytes] = []
        self.missing: list[Origin] = []
        self.ended: list[Origin] = []
        self.load = b""
        self.between: Callable[[int], None] = lambda chunk: None

    def apply(self, kind: Kind, record: bytes, origin: Origin) -> None:
        if kind is Kind.LOAD:
            self.loads.append(record)
            return
        if record.startswith(b"bad"):
            raise BadRecord("bad")
        if record.startswith(b"bug"):
            raise ZeroDivisionError
        self.heard.append(record)
        self.known[record] = None

    def missed(self, origin: Origin) -> None:
        self.missing.append(origin)

    def gone(self, origin: Origin) -> None:
        self.ended.append(origin)

    def state(self) -> Iterable[tuple[Kind, bytes]]:
        return [(Kind.LOAD, self.load)] if self.load else []

    def dump(self) -> Iterator[bytes]:
        known = [*self.known]
        for at in range(0, len(known), CHUNK):
            yield b"\n".join(known[at : at + CHUNK])
            self.between(at // CHUNK)

    def loader(self) -> Book:
        return self

    def feed(self, chunk: bytes) -> None:
        if b"unknown" in chunk:
            raise BadRecord("unknown")
        self.known.update(dict.fromkeys(chunk.split(b"\n")))

    def finish(self) -> None:
        pass


class Member:
    """One replica. In another namespace it is cut off from the others."""

    def __init__(
        self,
        url: str,
        settings: Replication = FAST,
        *,
        namespace: str = "test",
        keeps: bool = True,
        version: str = "1.0",
    ) -> None:
        self.link = Link(Redis(url=url, namespace=namespace, timeout=1.0), time.monotonic)
        self.feed = Feed(self.link, self.link.reader(), settings, time.monotonic, version)
        self.book = Book()
        self.feed.subscribe(self.book)
        self.feed.repeat(self.book)
        if keeps:
            self.feed.keep(self.book, frozenset({Kind.USED}))

    async def __aenter__(self) -> Member:
        await self.link.start()
        await self.feed.start()
        await self.feed.caught_up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.feed.stop()
        await self.link.stop()

    async def die(self) -> None:
        """As `kill -9`: no goodbye."""
        await self.link.stop()
        await self.feed.stop()

    def learn(self, *records: bytes) -> None:
        for record in records:
            self.book.known[record] = None
            self.feed.publish(Kind.USED, record)

    async def append(self, batch: bytes) -> None:
        """Put bytes into the stream as if a replica had."""
        await self.link.call("XADD", self.link.key("feed"), "*", "b", batch)


def numbered(start: int, end: int, name: bytes = b"r") -> list[bytes]:
    return [b"%s%d" % (name, number) for number in range(start, end)]
