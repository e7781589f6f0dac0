from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.shared.batch import read_head, read_records
from gateway.shared.outbox import MAX_BATCH, RECORD_MEMORY, Outbox
from gateway.shared.records import Away, Kind, Refused
from gateway.shared.stats import FeedStats
from tests.shared.members import numbered, until

ORIGIN = b"origin--"


class Wire:
    """Where batches go; fails as it is told."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.failures: list[Exception] = []
        self.loses_answers = False

    async def append(self, batch: bytes) -> None:
        if self.failures:
            failure = self.failures.pop()
            if self.loses_answers:
                self.batches.append(batch)
            raise failure
        self.batches.append(batch)

    @property
    def numbers(self) -> list[int]:
        return [read_head(batch)[1] for batch in self.batches]

    @property
    def records(self) -> list[bytes]:
        return [record for batch in self.batches for _, record in read_records(batch)]


def running(
    body: Callable[[Outbox, Wire, FeedStats], Coroutine[Any, Any, None]],
    interval: float = 0.0,
    max_bytes: int = 1 << 20,
) -> None:
    async def main() -> None:
        wire, stats = Wire(), FeedStats()
        outbox = Outbox(ORIGIN, wire.append, interval, max_bytes, stats)
        await body(outbox, wire, stats)

    asyncio.run(main())


def test_the_first_goes_at_once_and_the_next_together() -> None:
    async def body(outbox: Outbox, wire: Wire, stats: FeedStats) -> None:
        task = asyncio.create_task(outbox.run())
        outbox.publish(Kind.USED, b"first")
        await until(lambda: wire.batches)
        for record in numbered(0, 100):
            outbox.publish(Kind.USED, record)
        await outbox.drain()
        assert [len(read_records(batch)) for batch in wire.batches] == [1, 100]
        assert (outbox.confirmed, outbox.records, outbox.size) == (2, 0, 0)
        assert (stats.records_sent, stats.batches_sent) == (101, 2)
        task.cancel()

    running(body, interval=0.3)


def test_batches_are_bounded_and_a_long_record_has_its_own() -> None:
    async def body(outbox: Outbox, wire: Wire, stats: FeedStats) -> None:
        sent = [b"x" * 1000] * 40 + [b"y" * (MAX_BATCH * 3)] + [b"z"] * 3
        for record in sent:
            outbox.publish(Kind.USED, record)
        task = asyncio.create_task(outbox.run())
        await outbox.drain()
        assert wire.records == sent
        long = [batch for batch in wire.batches if len(batch) > MAX_BATCH + 17]
        assert [len(read_records(batch)) for batch in long] == [1]
        task.cancel()

    running(body)


def test_what_could_not_be_sent_stays_in_order_under_its_number() -> None:
    async def body(outbox: Outbox, wire: Wire, stats: FeedStats) -> None:
        wire.failures = [Refused("OOM command not allowed"), Away("timeout")]
        wire.loses_answers = True
        for record in numbered(0, 5000):
            outbox.publish(Kind.USED, record)
        task = asyncio.create_task(outbox.run())
        await outbox.drain()
        assert wire.numbers[:4] == [1, 1, 1, 2]
        assert wire.batches[0] == wire.batches[1] == wire.batches[2]
        del wire.batches[:2]
        assert wire.records == numbered(0, 5000)
        assert (stats.append_failures, stats.records_sent, stats.dropped) == (2, 5000, 0)
        task.cancel()

    running(body)


def test_beyond_its_bound_the_oldest_go_and_a_number_is_left_out() -> None:
    async def body(outbox: Outbox, wire: Wire, stats: FeedStats) -> None:
        outbox.publish(Kind.USED, b"sent")
        task = asyncio.create_task(outbox.run())
        await outbox.drain()
        wire.failures = [Away("down")]
        for record in numbered(0, 1000):
            outbox.publish(Kind.USED, record)
            assert outbox.size <= 10 * (RECORD_MEMORY + 5)
        await outbox.drain()
        kept = wire.records[1:]
        assert kept == numbered(1000 - len(kept), 1000)
        assert 5 <= len(kept) <= 10
        assert stats.dropped == 1000 - len(kept)
        assert wire.numbers == [1, 3]
        assert outbox.left == outbox.published == 1001
        task.cancel()

    running(body, max_bytes=10 * (RECORD_MEMORY + 5))


def test_a_record_longer_than_the_bound_is_dropped_and_no_other() -> None:
    async def body(outbox: Outbox, wire: Wire, stats: FeedStats) -> None:
        outbox.publish(Kind.USED, b"x" * 2000)
        outbox.publish(Kind.USED, b"short")
        task = asyncio.create_task(outbox.run())
        await outbox.drain()
        assert wire.records == [b"short"]
        assert stats.dropped == 1
        task.cancel()

    running(body, max_bytes=1000)
