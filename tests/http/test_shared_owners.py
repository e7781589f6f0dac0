"""Owners of stored responses that several replicas know, against a real Redis."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from gateway.config import Redis, Stored
from gateway.http.owners import MAX_ID, Owner
from gateway.http.shared_owners import PENDING, SharedOwners
from gateway.shared.link import Link
from loadtests.redis.server import RedisServer
from tests.replicas import until

X, Y = Owner("10.0.0.1:8000", "tenant ä"), Owner("10.0.0.2:8000")
KEY = "{prefixgate:owners}:responses"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@asynccontextmanager
async def replica(
    server: RedisServer, stored: Stored | None = None, namespace: str = "owners"
) -> AsyncIterator[SharedOwners]:
    clock = asyncio.get_running_loop().time
    link = Link(Redis(url=server.url, namespace=namespace, timeout=2.0), clock)
    await link.start()
    assert link.up
    owners = SharedOwners(link, stored or Stored(), clock)
    owners.start()
    try:
        yield owners
    finally:
        await owners.stop()
        await link.stop()


async def look_up(owners: SharedOwners, id: str) -> Owner | None:
    sought = owners.seek(id)
    if sought is not None:
        await sought
    return owners.find(id)


async def becomes_known(owners: SharedOwners, id: str) -> Owner | None:
    """Its owner once there is one; None after a second or so."""
    for _ in range(100):
        found = await look_up(owners, id)
        if found is not None:
            return found
        await asyncio.sleep(0.01)
    return None


def size(server: RedisServer) -> tuple[bytes | None, bytes | None]:
    return server.command("HLEN", KEY), server.command("ZCARD", f"{KEY}:noted")


@pytest.mark.parametrize("together", [True, False], ids=["together", "cut"])
def test_A07_what_one_replica_saw_made_another_finds(server: RedisServer, together: bool) -> None:
    async def run() -> list[Owner | None]:
        server.command("FLUSHALL")
        async with (
            replica(server) as here,
            replica(server, namespace="owners" if together else "others") as there,
        ):
            here.note("resp_1", X)
            here.note("resp_2", Y)
            for _ in range(3000):
                if size(server)[0] == b":2\r\n":
                    break
                await asyncio.sleep(0.01)
            found = [await look_up(there, id) for id in ("resp_1", "resp_2")]
            assert here.seek("resp_1") is None  # what is known here is not asked for
            assert await look_up(there, "resp_3") is None
            return found

    assert asyncio.run(run()) == ([X, Y] if together else [None, None])


def test_A07_a_restart_forgets_nothing(server: RedisServer) -> None:
    async def run(stops: bool) -> Owner | None:
        server.command("FLUSHALL")
        async with replica(server) as before:
            before.note("resp_1", X)
            if not stops:
                before._pending.clear()
        async with replica(server) as after:
            return await look_up(after, "resp_1")

    assert asyncio.run(run(stops=True)) == X
    assert asyncio.run(run(stops=False)) is None


def test_Z09_what_is_kept_is_bounded(server: RedisServer) -> None:
    async def run() -> None:
        server.command("FLUSHALL")
        async with replica(server, Stored(max_ids=10)) as owners:
            for number in range(1000):
                owners.note(f"resp_{number}", X)
        assert size(server) == (b":10\r\n", b":10\r\n")
        async with replica(server) as another:
            assert await look_up(another, "resp_999") == X
            assert await look_up(another, "resp_1") is None

    asyncio.run(run())


def test_Z09_owners_expire(server: RedisServer) -> None:
    async def run() -> None:
        server.command("FLUSHALL")
        async with replica(server) as here, replica(server) as there, replica(server) as third:
            here.note("resp_1", X)
            assert await becomes_known(there, "resp_1") == X
            server.command("ZADD", f"{KEY}:noted", "1000", "resp_1")  # in 1970
            assert await look_up(third, "resp_1") is None
            # What comes clears away what is overdue.
            here.note("resp_2", Y)
            assert await becomes_known(there, "resp_2") == Y
            assert size(server) == (b":1\r\n", b":1\r\n")
            # And when nothing comes, all of it goes.
            for key in (KEY, f"{KEY}:noted"):
                left = int((server.command("PTTL", key) or b":-1")[1:])
                assert 0 < left <= Stored().ttl * 1000

    asyncio.run(run())


def test_notes_wait_for_a_redis_that_is_away_up_to_a_bound() -> None:
    async def run() -> None:
        with RedisServer() as server:
            async with replica(server) as here:
                server.kill()
                for number in range(PENDING + 5):
                    here.note(f"resp_{number}", X)
                assert here.dropped == 5
                assert here.find("resp_0") == X
                server.start()
                async with replica(server) as there:
                    for _ in range(1000):
                        if await look_up(there, f"resp_{PENDING + 4}") is not None:
                            break
                        await asyncio.sleep(0.01)
                    assert await look_up(there, "resp_5") == X
                    assert await look_up(there, "resp_4") is None

    asyncio.run(run())


def test_what_cannot_be_asked_is_unknown() -> None:
    async def run() -> None:
        with RedisServer() as server:
            async with replica(server) as owners:
                assert owners.seek("x" * (MAX_ID + 1)) is None
                server.kill()
                while owners._commands.up:
                    assert await look_up(owners, "resp_1") is None
                    await asyncio.sleep(0.01)
                assert owners.seek("resp_1") is None

    asyncio.run(run())


def test_what_redis_holds_of_others_does_no_harm(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def run() -> None:
        async with replica(server) as owners:
            link = owners._commands
            responses, noted = link.key("responses"), link.key("responses", "noted")
            await link.call("HSET", responses, "resp_9", b"\xff\xfe")
            await link.call("ZADD", noted, round(time.time() * 1000), "resp_9")
            found = await look_up(owners, "resp_9")
            assert found is not None
            assert found.tenant == ""
            await link.call("DEL", responses)
            await link.call("SET", responses, "junk")
            owners.note("resp_1", X)
            await until(lambda: "is not shared: WRONGTYPE" in caplog.text)
            await link.call("DEL", responses)
            await until(lambda: "is shared again" in caplog.text)
            async with replica(server) as there:
                assert await look_up(there, "resp_1") == X

    asyncio.run(run())
    assert caplog.text.count("is not shared") == 1


def test_A07_a_note_that_is_on_its_way_is_waited_for(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.http.shared_owners.LOOKS", (0.0, 0.5))

    async def run() -> None:
        async with replica(server) as here, replica(server) as there:
            sought = asyncio.create_task(look_up(there, "resp_late"))
            await asyncio.sleep(0.1)  # for the first look; were it later, it would find it
            here.note("resp_late", X)
            assert await sought == X

    asyncio.run(run())
