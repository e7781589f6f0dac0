"""Against a real Redis, by one replica after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from gateway.config import Redis
from gateway.shared.link import Link
from gateway.shared.records import Refused
from gateway.shared.store import (
    KEPT,
    MAX_ENTRIES,
    NOTHING,
    Behind,
    Change,
    Entry,
    Store,
    Stored,
    Version,
)
from loadtests.redis.server import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


Test = Callable[[Store, Link], Awaitable[None]]


@pytest.fixture
def run(server: RedisServer) -> Callable[[Test], None]:
    server.command("FLUSHALL")

    async def with_store(test: Test) -> None:
        link = Link(Redis(url=server.url), time.monotonic)
        await link.start()
        try:
            await test(Store(link, 2.0), link)
        finally:
            await link.stop()

    return lambda test: asyncio.run(with_store(test))


def now(value: bytes | None) -> Change:
    return Change(value, 0.0)


def values(stored: Stored) -> dict[str, bytes | None]:
    return {name: entry.value for name, entry in stored.entries.items()}


def test_what_is_set_is_read(run: Callable[[Test], None]) -> None:
    async def test(store: Store, link: Link) -> None:
        assert await store.version() == NOTHING
        assert await store.read() == Stored(NOTHING, {})
        first, _ = await store.change(NOTHING, {"a": now(b'"1 2"'), "b": now(b"null")})
        second, _ = await store.change(first, {"b": now(None)})
        assert (first.number, second.number) == (1, 2)
        assert await store.version() == second
        stored = await store.read()
        assert stored.version == second
        assert values(stored) == {"a": b'"1 2"', "b": None}
        assert abs(stored.entries["a"].at / 1000 - time.time()) < 60

    run(test)


def test_of_one_thing_the_later_change_holds(run: Callable[[Test], None]) -> None:
    async def test(store: Store, link: Link) -> None:
        version, _ = await store.change(NOTHING, {"a": now(b"1"), "gone": now(None)})
        late = {"a": Change(b"2", 60.0), "gone": Change(b"2", 60.0), "new": Change(b"2", 60.0)}
        _, outrun = await store.change(version, late)
        assert sorted(outrun) == ["a", "gone"]
        assert values(await store.read()) == {"a": b"1", "gone": None, "new": b"2"}
        # Made just now, whatever Redis's clock says of the one before.
        ahead = b"%d 1" % (1000 * (time.time() + 3600))
        await link.call("HSET", link.key("state"), "a", ahead)
        _, outrun = await store.change(version, {"a": now(b"3")})
        assert outrun == []
        assert values(await store.read())["a"] == b"3"

    run(test)


def test_redis_that_has_lost_something_is_given_it_back(run: Callable[[Test], None]) -> None:
    async def test(store: Store, link: Link) -> None:
        await store.change(NOTHING, dict.fromkeys(("theirs", "later", "stale"), now(b"1")))
        ours = Version(7, "ours")
        with pytest.raises(Behind):
            await store.change(ours, {"a": now(b"1")})
        assert "a" not in (await store.read()).entries
        just_now = round(1000 * (time.time() + 60))
        lost = {"later": Entry(5, b"2"), "gone": Entry(6, None), "stale": Entry(just_now, b"2")}
        await store.put_back(ours, lost)
        stored = await store.read()
        assert stored.version.number == 8
        assert values(stored) == {"theirs": b"1", "later": b"1", "gone": None, "stale": b"2"}

    run(test)


def test_what_was_taken_back_is_forgotten_in_the_end(run: Callable[[Test], None]) -> None:
    async def test(store: Store, link: Link) -> None:
        version, _ = await store.change(NOTHING, {"young": now(None)})
        old = b"%d " % (1000 * (time.time() - KEPT - 60))
        await link.call("HSET", link.key("state"), "old", old)
        await store.change(version, {"a": now(b"1")})
        assert values(await store.read()) == {"young": None, "a": b"1"}

    run(test)


def test_there_is_a_bound(run: Callable[[Test], None]) -> None:
    async def test(store: Store, link: Link) -> None:
        many = {str(number): now(b"1") for number in range(MAX_ENTRIES - 1)}
        version, _ = await store.change(NOTHING, many)
        with pytest.raises(Refused, match="FULL"):
            await store.change(version, {"one": now(b"1"), "more": now(b"1")})
        assert await store.version() == version
        await store.change(version, {"0": now(b"2")})

    run(test)


def test_what_cannot_be_read_is_left_out(run: Callable[[Test], None]) -> None:
    async def test(store: Store, link: Link) -> None:
        key = link.key("state")
        strange = {"a": b"1", "b": b"x 1", "c": b"1 no json", b"\xff": b"1 1", "@": b"x"}
        strange |= {"d": b"9" * 5000 + b" 1", "e": b"1 " + b"[" * 9000}
        for name, value in {**strange, "good": b"1 1"}.items():
            await link.call("HSET", key, name, value)
        assert await store.read() == Stored(NOTHING, {"good": Entry(1, b"1")})
        for version in (b"9" * 5000 + b" x", b"\xff", b""):
            await link.call("HSET", key, "@", version)
            assert await store.version() == NOTHING

    run(test)
