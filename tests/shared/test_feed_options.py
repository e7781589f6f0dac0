"""F02 for the section `replication`: what each option does that its default would not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from gateway.config import ConfigError, Replication, Settings, convert
from loadtests.redis.server import RedisServer
from tests.shared.members import Member, numbered, until

CALM = Replication()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize(("interval", "together"), [(0.3, True), (CALM.batch_interval, False)])
def test_batch_interval(redis: RedisServer, interval: float, together: bool) -> None:
    async def main() -> None:
        settings = Replication(batch_interval=interval)
        async with Member(redis.url, settings, namespace=f"batch{together}") as a:
            sent = a.feed.stats.batches_sent
            for record in numbered(0, 20):
                a.learn(record)
                await asyncio.sleep(0.02)
            await until(lambda: a.feed.stats.outbox_records == 0)
            assert (a.feed.stats.batches_sent - sent < 8) is together

    asyncio.run(main())


@pytest.mark.parametrize(("lease", "ends"), [(0.6, True), (3600.0, False)])
def test_lease(redis: RedisServer, lease: float, ends: bool) -> None:
    async def main() -> None:
        settings = Replication(lease=lease)
        async with Member(redis.url, settings, namespace=f"lease{ends}") as a:
            b = await Member(redis.url, settings, namespace=f"lease{ends}").__aenter__()
            await until(lambda: a.feed.stats.replicas == 2)
            await b.die()
            if ends:
                await until(lambda: a.book.ended == [b.feed.origin])
            else:
                await asyncio.sleep(1.2)
                assert a.book.ended == []

    asyncio.run(main())


@pytest.mark.parametrize(("interval", "more"), [(0.2, True), (CALM.snapshot_interval, False)])
def test_snapshot_interval(redis: RedisServer, interval: float, more: bool) -> None:
    async def main() -> None:
        settings = Replication(lease=0.6, snapshot_interval=interval)
        async with Member(redis.url, settings, namespace=f"snapshot{more}") as a:
            a.learn(*numbered(0, 200))
            await until(lambda: a.feed.stats.snapshots_written == 1)
            a.learn(*numbered(200, 400))
            if more:
                await until(lambda: a.feed.stats.snapshots_written == 2)
            else:
                await asyncio.sleep(0.8)
                assert a.feed.stats.snapshots_written == 1

    asyncio.run(main())


@pytest.mark.parametrize(("timeout", "waits"), [(0.1, False), (CALM.warm_timeout, True)])
def test_warm_timeout(redis: RedisServer, timeout: float, waits: bool) -> None:
    async def main() -> None:
        a = Member(redis.url, Replication(warm_timeout=timeout), namespace=f"warm{waits}")
        await a.link.start()
        gate = asyncio.Event()
        look = a.feed._stream.look

        async def late(*position: object) -> object:
            await gate.wait()
            return await look(*position)

        a.feed._stream.look = late
        await a.feed.start()
        waiting = asyncio.create_task(a.feed.caught_up())
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        assert bool(done) is not waits
        gate.set()
        assert await waiting is waits
        await until(lambda: a.feed.warm)
        await a.feed.stop()
        await a.link.stop()

    asyncio.run(main())


@pytest.mark.parametrize(("most", "drops"), [(65_536, True), (CALM.max_outbox, False)])
def test_max_outbox(most: int, drops: bool) -> None:
    async def main() -> None:
        a = Member("redis://127.0.0.1:1", Replication(max_outbox=most))
        a.learn(*numbered(0, 2000))
        assert (a.feed.stats.dropped > 0) is drops

    asyncio.run(main())


@pytest.mark.parametrize(("most", "trims"), [(100, True), (CALM.max_stream, False)])
def test_max_stream(redis: RedisServer, most: int, trims: bool) -> None:
    async def main() -> None:
        settings = Replication(max_stream=most, batch_interval=0.0)
        async with Member(redis.url, settings, namespace=f"stream{trims}") as a:
            for number in range(400):
                await a.feed._stream.append(b"%d" % number)
            assert (await a.link.call("XLEN", a.link.key("feed")) < 300) is trims

    asyncio.run(main())


@pytest.mark.parametrize(
    "option",
    [
        {"batch_interval": -0.1},
        {"lease": 0.01},
        {"snapshot_interval": 0},
        {"warm_timeout": -1},
        {"max_outbox": 100},
        {"max_stream": 0},
    ],
)
def test_what_cannot_be_is_refused(option: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"replication.{next(iter(option))}"):
        convert({"replication": option}, Settings, "the settings")


def test_every_option_is_tried_here() -> None:
    tried = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {field.name for field in msgspec.structs.fields(Replication)} <= tried
