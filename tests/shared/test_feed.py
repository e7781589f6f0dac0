"""Replicas in one process around a real Redis; one that is cut off shows that it is the feed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import pytest

from gateway.config import Replication
from gateway.shared.batch import pack
from gateway.shared.records import Kind
from gateway.shared.stats import Skip, Warmth
from loadtests.redis.server import RedisServer
from tests.shared.members import FAST, Member, numbered, until

LATER = 1 << 43
"""Milliseconds: a clock that is far ahead."""


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


Body = Callable[[Member, Member, Member], Awaitable[None]]


def trio(redis: RedisServer, body: Body, settings: Replication = FAST) -> None:
    """Two replicas that hear of each other, and one that does not."""

    async def main() -> None:
        async with (
            Member(redis.url, settings) as a,
            Member(redis.url, settings) as b,
            Member(redis.url, settings, namespace="cut") as cut,
        ):
            await body(a, b, cut)
            assert cut.book.heard == []
            assert cut.book.missing == []

    asyncio.run(main())


async def share(a: Member, b: Member, cut: Member, record: bytes) -> None:
    """What one learns the other hears, and the one that is cut off does not."""
    a.learn(record)
    await until(lambda: record in b.book.known)
    assert record not in cut.book.known


def test_C01_what_one_learns_the_others_hear_in_order(redis: RedisServer) -> None:
    async def body(a: Member, b: Member, cut: Member) -> None:
        for start in range(0, 3000, 100):
            a.learn(*numbered(start, start + 100))
            b.learn(*numbered(start, start + 100, b"s"))
            await asyncio.sleep(0.001)
        await until(lambda: len(a.book.heard) == len(b.book.heard) == 3000)
        assert b.book.heard == numbered(0, 3000)
        assert a.book.heard == numbered(0, 3000, b"s")
        assert a.book.missing == b.book.missing == []
        assert a.feed.stats.batches_sent < 1000
        await a.feed._tail.look()
        assert a.feed.stats.lag_entries <= 2

    trio(redis, body)


def test_it_is_told_how_far_a_replica_is_behind(redis: RedisServer) -> None:
    async def body(a: Member, b: Member, cut: Member) -> None:
        async def read(*words: object) -> list[object]:
            return await asyncio.get_running_loop().create_future()

        b.feed._stream.read = read
        async with asyncio.timeout(20):
            number = 0
            while b.feed.stats.lag_entries < 3 or not b.feed.stats.lag_seconds > 0:
                number += 1
                await a.append(pack(b"behind--", number, [(Kind.USED, b"z")]))
                await b.feed._tail.look()
            while a.feed.stats.lag_entries:  # as the others are, in the end
                await a.feed._tail.look()

    trio(redis, body)


def test_what_is_lost_comes_twice_or_late_is_told_by_its_number(redis: RedisServer) -> None:
    x, y = b"x-------", b"y-------"

    async def body(a: Member, b: Member, cut: Member) -> None:
        for number in (1, 2, 4, 3, 4, 5):
            await a.append(pack(x, number, [(Kind.USED, b"x%d" % number)]))
        for number in (1, 2, 3, 4, 5):
            await a.append(pack(y, number, [(Kind.USED, b"y%d" % number)]))
        for member in (a, b):
            await until(lambda member=member: b"y5" in member.book.known)
            heard = [record for record in member.book.heard if record.startswith(b"x")]
            assert heard == [b"x1", b"x2", b"x4", b"x5"]
            assert member.book.missing == [x]
            assert member.feed.stats.duplicates == 2

    trio(redis, body)


def test_what_another_release_writes_is_skipped_and_counted(redis: RedisServer) -> None:
    async def body(a: Member, b: Member, cut: Member) -> None:
        origin = b"newer---"
        await a.append(b"\x02" + pack(origin, 1, [(1, b"x")])[1:])
        await a.append(pack(origin, 1, [(99, b"?"), (1, b"bad"), (1, b"good")]))
        await a.link.call("XADD", a.link.key("feed"), "*", "", "", "other", "fields")
        await share(a, b, cut, b"after")
        assert b.book.heard == [b"good", b"after"]
        skipped = {reason: count for reason, count in b.feed.stats.skipped.items() if count}
        assert skipped == dict.fromkeys((Skip.VERSION, Skip.KIND, Skip.RECORD, Skip.BATCH), 1)

    trio(redis, body)


def test_no_bytes_end_the_tail(redis: RedisServer) -> None:
    async def body(a: Member, b: Member, cut: Member) -> None:
        bytes_ = random.Random(1)
        for _ in range(300):
            head = pack(b"fuzz----", bytes_.randrange(100), [])[: bytes_.randrange(20)]
            await a.append(head + bytes_.randbytes(bytes_.randrange(30)))
        await share(a, b, cut, b"after")

    trio(redis, body)


def test_a_newcomer_starts_from_the_snapshot_and_the_rest_of_the_stream(
    redis: RedisServer,
) -> None:
    settings = Replication(lease=0.9, snapshot_interval=0.5)

    async def body(a: Member, b: Member, cut: Member) -> None:
        before, after = numbered(0, 500), numbered(500, 600)
        a.learn(*before)
        await until(lambda: a.feed.stats.snapshots_written + b.feed.stats.snapshots_written)
        for member in (a, b):
            member.feed._snapshots.snapshotter = None
        snapshot = await a.feed._snapshots.peek()
        assert snapshot is not None
        # Not what came after it, such as signs of life: that would be missing indeed.
        after_it = f"{snapshot.at.ms}-{snapshot.at.seq + 1}"
        await a.link.call("XTRIM", a.link.key("feed"), "MINID", after_it)
        a.learn(*after)
        await until(lambda: after[-1] in b.book.known)
        async with (
            Member(redis.url, settings) as new,
            Member(redis.url, settings, keeps=False) as tail_only,
        ):
            assert new.feed.warm
            assert {*new.book.known} == {*before, *after}
            assert new.book.missing == []
            assert new.feed.stats.snapshots_loaded == 1
            # Without the snapshot the part that was trimmed is missing, and that is said.
            assert {*after} <= {*tail_only.book.known}
            assert before[0] not in tail_only.book.known
            assert a.feed.origin in tail_only.book.missing

    trio(redis, body, settings)


def test_who_falls_behind_the_trimmed_stream_loads_the_snapshot(redis: RedisServer) -> None:
    settings = Replication(lease=0.9, snapshot_interval=0.5)

    async def body(a: Member, b: Member, cut: Member) -> None:
        await share(a, b, cut, b"first")
        async with Member(redis.url, settings, keeps=False) as tail_only:
            # These two stop reading, as if they had no time; the other one goes on and forgets.
            for member in (b, tail_only):
                member.feed._background._tasks[1].cancel()
            b.feed._snapshots.snapshotter = None
            a.learn(*numbered(0, 300))
            await until(lambda: a.feed.stats.snapshots_written)
            a.feed._snapshots.snapshotter = None
            await a.link.call("XTRIM", a.link.key("feed"), "MAXLEN", 0)
            a.learn(b"last")
            await until(lambda: a.feed.stats.outbox_records == 0)
            b.feed._snapshots.snapshotter = b.book
            for member in (b, tail_only):
                again = member.feed._tail.run(member.feed._snapshots)
                member.feed._background._tasks.append(asyncio.create_task(again))
                await until(lambda member=member: b"last" in member.book.known)
            assert {*b.book.known} == {b"first", b"last", *numbered(0, 300)}
            assert b.feed.stats.reloads == 1
            assert a.feed.origin in b.book.missing
            assert b"r0" not in tail_only.book.known

    trio(redis, body, settings)


def test_Z10_after_a_flush_all_goes_on_and_the_snapshot_is_written_anew(
    redis: RedisServer,
) -> None:
    settings = Replication(lease=0.9, snapshot_interval=1.0)

    async def body(a: Member, b: Member, cut: Member) -> None:
        a.learn(*numbered(0, 300))
        stats = [each.feed.stats for each in (a, b)]
        await until(lambda: all(each.snapshot_age is not None for each in stats))
        assert [each.snapshots_lost for each in stats] == [0, 0]
        redis.command("FLUSHALL")
        await share(a, b, cut, b"after")
        await share(b, a, cut, b"after that")
        await until(lambda: redis.command("EXISTS", a.link.key("snapshot").decode()) == b":1\r\n")
        # The other one may look again when there is a new one.
        assert sum(each.snapshots_lost for each in stats) >= 1
        async with Member(redis.url, settings) as new:
            await until(lambda: {*new.book.known} == {*a.book.known})
        assert len(a.book.known) == 302

    trio(redis, body, settings)


def test_Z01_what_was_learnt_while_redis_was_away_is_shared_when_it_is_back(
    redis: RedisServer,
) -> None:
    async def body(a: Member, b: Member, cut: Member) -> None:
        for member in (a, b):
            member.feed._snapshots.snapshotter = None  # so that all comes through the stream
        await share(a, b, cut, b"before")
        redis.kill()
        await until(lambda: not a.link.up and not b.link.up)
        a.learn(*numbered(0, 1000))
        assert b"r0" not in b.book.known
        redis.start()
        await until(lambda: len(b.book.heard) >= 1001)
        assert b.book.heard == [b"before", *numbered(0, 1000)]
        assert b.book.missing == []
        await share(b, a, cut, b"back")

    trio(redis, body)


def test_Z01_a_frozen_redis_loses_nothing_and_ends_nobody(redis: RedisServer) -> None:
    async def body(a: Member, b: Member, cut: Member) -> None:
        await share(a, b, cut, b"before")
        redis.freeze()
        a.learn(*numbered(0, 500))
        await asyncio.sleep(1.5)  # longer than the lease; the assertions wait for nothing
        assert b"r0" not in b.book.known
        redis.resume()
        await until(lambda: len(b.book.heard) >= 501)
        assert b.book.heard == [b"before", *numbered(0, 500)]
        assert a.book.ended == b.book.ended == []

    trio(redis, body)


def test_entries_that_come_before_the_position_are_found(redis: RedisServer) -> None:
    """As after a failover to a server whose clock is behind."""

    async def body(a: Member, b: Member, cut: Member) -> None:
        for member in (a, b):
            member.feed._snapshots.snapshotter = None  # so that all comes through the stream
        ahead = pack(b"ahead---", 1, [(Kind.USED, b"ahead")])
        key = a.link.key("feed")
        await a.link.call("XADD", key, f"{LATER}-1", "b", ahead)
        await until(lambda: b"ahead" in a.book.known and b"ahead" in b.book.known)
        await a.link.call("DEL", key)
        await share(a, b, cut, b"after")
        await share(b, a, cut, b"after that")
        assert a.book.heard.count(b"after that") == b.book.heard.count(b"after") == 1
        await until(lambda: all(each.feed.stats.reloads for each in (a, b)))
        assert [each.feed.stats.rewinds for each in (a, b)] == [1, 1]

    trio(redis, body)


def test_own_entries_that_redis_lost_are_owed(redis: RedisServer) -> None:
    """As after a failover to a server that lacks the last entries."""

    settings = Replication(lease=0.9, snapshot_interval=2.0)

    async def body(a: Member, b: Member, cut: Member) -> None:
        b.feed._snapshots.snapshotter = None
        await share(a, b, cut, b"first")
        await until(lambda: a.feed.stats.snapshots_written)
        written = a.feed.stats.snapshots_written
        a.feed._background._tasks[1].cancel()
        read = a.feed.stats.batches_sent
        a.learn(b"lost")
        await until(lambda: b"lost" in b.book.known and a.feed.stats.batches_sent > read + 1)
        await a.link.call("DEL", a.link.key("feed"))
        a.feed._background._tasks.append(asyncio.create_task(a.feed._tail.run(a.feed._snapshots)))
        await until(lambda: a.feed.stats.own_gaps)
        await until(lambda: a.feed.stats.snapshots_written > written)

    trio(redis, body, settings)


def test_an_outbox_that_overflows_tells_of_the_gap_and_owes_a_snapshot(
    redis: RedisServer,
) -> None:
    settings = Replication(lease=0.9, snapshot_interval=2.0, max_outbox=65_536)

    async def body(a: Member, b: Member, cut: Member) -> None:
        await share(a, b, cut, b"before")
        redis.kill()
        await until(lambda: not a.link.up)
        b.feed._snapshots.snapshotter = None
        a.learn(*numbered(0, 2000))
        stats = a.feed.stats
        assert stats.outbox_bytes <= 65_536
        assert stats.dropped > 500
        redis.start()
        await until(lambda: b"r1999" in b.book.known)
        assert b.book.heard == [b"before", *numbered(2000 - len(b.book.heard) + 1, 2000)]
        assert b.book.missing == [a.feed.origin]
        await until(lambda: a.feed.stats.snapshots_written)
        async with Member(redis.url, settings) as new:
            assert len(new.book.known) == 2001

    trio(redis, body, settings)


def test_replicas_know_of_each_other_until_they_leave_or_die(redis: RedisServer) -> None:
    async def body(a: Member, b: Member, cut: Member) -> None:
        async with Member(redis.url, version="2.0") as c:
            d = await Member(redis.url).__aenter__()
            d.book.load = b"load of d"
            await until(lambda: a.feed.stats.replicas == b.feed.stats.replicas == 4)
            await until(lambda: a.book.loads.count(b"load of d") >= 3)
            others = a.feed.replicas.others
            assert others[c.feed.origin].version == "2.0"
        await until(lambda: a.book.ended == b.book.ended == [c.feed.origin])
        assert d.feed.origin in others
        await d.die()
        await until(lambda: a.book.ended == b.book.ended == [c.feed.origin, d.feed.origin])
        assert [*others] == [b.feed.origin]
        assert cut.feed.stats.replicas == 1

    trio(redis, body)


def test_a_replica_that_starts_without_redis_is_ready_at_once_and_warm_later(
    redis: RedisServer,
) -> None:
    async def main() -> None:
        a = Member(redis.url, Replication(warm_timeout=3600.0))
        async with a:
            assert a.feed.stats.warmth is Warmth.COLD
            a.learn(b"alone")
            redis.start()
            async with Member(redis.url) as b:
                await until(lambda: a.feed.warm and b"alone" in b.book.known)

    redis.kill()
    asyncio.run(main())


def test_Z09_keys_expire_and_their_number_is_bounded(redis: RedisServer) -> None:
    settings = Replication(lease=0.9, snapshot_interval=0.3)

    async def body(a: Member, b: Member, cut: Member) -> None:
        for round in range(4):
            written = a.feed.stats.snapshots_written + b.feed.stats.snapshots_written
            a.learn(*numbered(round * 200, round * 200 + 200))
            await until(
                lambda written=written: (
                    a.feed.stats.snapshots_written + b.feed.stats.snapshots_written > written
                )
            )
        keys = [key for key in await a.link.call("KEYS", "*") if b"cut" not in key]
        # The stream, the pointer, two snapshots, one being written, the lease, the link's probe.
        assert 4 <= len(keys) <= 7
        for key in keys:
            assert await a.link.call("PTTL", key) != -1, key

    trio(redis, body, settings)


SNAPSHOTS = Replication(lease=0.9, snapshot_interval=0.5)


def test_a_writer_that_dies_half_way_leaves_nothing_for_ever(redis: RedisServer) -> None:
    async def main() -> None:
        async with Member(redis.url, SNAPSHOTS) as a:
            reached = asyncio.Event()

            def stall(chunk: int) -> None:
                if chunk == 2:
                    reached.set()
                    a.link._breaker.stop()  # as the process would

            a.book.between = stall
            a.learn(*numbered(0, 300))
            await asyncio.wait_for(reached.wait(), 15)
        async with Member(redis.url, SNAPSHOTS) as b:
            key = b.link.key("snapshot").decode()
            keys = await b.link.call("KEYS", key + ":*")
            assert len(keys) == 2  # the lease, and the chunks that no pointer names
            assert all([0 < await b.link.call("PTTL", each) <= 60_000 for each in keys])
            assert await b.link.call("EXISTS", key) == 0
            await until(lambda: b"r299" in b.book.known)
            assert b.feed.stats.snapshots_written == 0  # the lease is not its own yet
            await b.link.call("PEXPIRE", key + ":lease", 100)
            await until(lambda: b.feed.stats.snapshots_written)
            async with Member(redis.url, SNAPSHOTS) as c:
                assert len(c.book.known) == 300

    asyncio.run(main())


def test_a_writer_that_lost_its_lease_changes_nothing(redis: RedisServer) -> None:
    async def main() -> None:
        async with Member(redis.url, SNAPSHOTS) as a:
            key = a.link.key("snapshot").decode()
            a.book.between = lambda chunk: redis.command("SET", key + ":lease", "another") and None
            a.learn(*numbered(0, 300))
            await until(lambda: a.feed.stats.snapshot_failures)
            assert await a.link.call("EXISTS", key) == 0
            assert await a.link.call("GET", key + ":lease") == b"another"
            a.book.between = lambda chunk: None
            await a.link.call("DEL", key + ":lease")
            await until(lambda: a.feed.stats.snapshots_written)

    asyncio.run(main())


@pytest.mark.parametrize("field", ["version", "chunk", "pointer"])
def test_a_snapshot_that_cannot_be_read_is_counted_and_left_alone(
    redis: RedisServer, field: str
) -> None:
    async def main() -> None:
        async with Member(redis.url, SNAPSHOTS) as a:
            a.learn(*numbered(0, 200))
            await until(lambda: a.feed.stats.snapshots_written)
        async with Member(redis.url, SNAPSHOTS, namespace="other") as tool:
            key = tool.link.key("snapshot").replace(b"other", b"test")
            pointer = msgspec.json.decode(await tool.link.call("GET", key))
            if field == "chunk":
                await tool.link.call("HSET", key + b":" + pointer["id"].encode(), 1, "unknown")
            elif field == "version":
                pointer["version"] = 99
            else:
                pointer = {"position": "no"}
            text = msgspec.json.encode(pointer)
            await tool.link.call("SET", key, text, "PX", 60_000)
            async with Member(redis.url, SNAPSHOTS) as b:
                assert b.feed.warm
                assert {*b.book.known} == {*numbered(0, 200)}  # by the stream
                b.learn(*numbered(200, 400))
                age = b.feed.stats
                assert age.snapshot_failures == 1
                assert age.snapshots_loaded == 0
                await asyncio.sleep(0.7)
                assert await tool.link.call("GET", key) == text

    asyncio.run(main())


def test_what_stops_sends_what_it_has_and_is_then_silent(redis: RedisServer) -> None:
    async def main() -> None:
        # With such a lease nobody is missed while the test lasts: it is the goodbye that is heard.
        async with Member(redis.url, Replication(lease=600.0)) as b:
            slow = Replication(batch_interval=0.3)
            async with Member(redis.url, slow) as a:
                a.learn(*numbered(0, 500))
            a.learn(b"too late")
            await until(lambda: b"r499" in b.book.known and b.book.ended)
            assert b.book.heard == numbered(0, 500)
            assert a.feed.stats.outbox_records == 0

    asyncio.run(main())
