from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gateway.shared.link import Link
from gateway.shared.reader import Reader
from gateway.shared.records import Away, Refused
from loadtests.redis.server import RedisServer
from tests.shared.links import eventually, linked


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> Iterator[RedisServer]:
    yield shared_server
    shared_server.resume()
    shared_server.command("FLUSHALL")


def blocked(server: RedisServer) -> bool:
    return b"blocked_clients:1\r" in (server.command("INFO", "clients") or b"")


async def read(link: Link, reader: Reader, stream: str, wait: float = 10.0) -> list[bytes] | None:
    """The first entry of a stream, waited for."""
    words = ("XREAD", "BLOCK", int(wait * 1000), "STREAMS", link.key(stream), 0)
    reply = await reader.block(*words, wait=wait)
    if reply is None:
        return None
    [[_, [[_, fields]]]] = reply
    found: list[bytes] = fields
    return found


async def add(link: Link, stream: str) -> None:
    await link.call("XADD", link.key(stream), "*", "in", stream)


def test_it_waits_and_holds_nobody_up(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url, max_connections=1) as link:
            reader = link.reader()
            waiting = asyncio.create_task(read(link, reader, "s"))
            await eventually(lambda: blocked(server))
            await add(link, "s")
            assert await waiting == [b"in", b"s"]
            assert await read(link, reader, "none", wait=0.01) is None
            with pytest.raises(Refused, match=r"^ERR "):
                await reader.block("XREAD", "BLOCK", wait=0.0)
            assert link.up

    asyncio.run(run())


def test_Z06_the_next_command_has_nothing_to_do_with_a_cancelled_one(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            reader = link.reader()
            cancelled = asyncio.create_task(read(link, reader, "a", wait=60.0))
            await eventually(lambda: blocked(server))
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            await add(link, "b")
            assert await read(link, reader, "b", wait=1.0) == [b"in", b"b"]
            await add(link, "a")
            assert await read(link, reader, "b", wait=1.0) == [b"in", b"b"]

    asyncio.run(run())


def test_Z03_a_killed_connection_is_made_again(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            reader = link.reader()
            waiting = asyncio.create_task(read(link, reader, "s"))
            await eventually(lambda: blocked(server))
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            await eventually(lambda: blocked(server))
            await add(link, "s")
            assert await waiting == [b"in", b"s"]

    asyncio.run(run())


def test_Z01_it_ends_with_the_link_and_comes_back_with_it(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url, timeout=0.1) as link:
            await eventually(lambda: link.up)
            reader = link.reader()
            waiting = asyncio.create_task(read(link, reader, "s", wait=60.0))
            await eventually(lambda: blocked(server))
            server.freeze()
            with pytest.raises(Away):
                await waiting
            assert not link.up
            with pytest.raises(Away):
                await read(link, reader, "s")
            server.resume()
            await eventually(lambda: link.up)
            await add(link, "s")
            assert await read(link, reader, "s") == [b"in", b"s"]

    asyncio.run(run())


def test_a_server_that_keeps_it_waiting_too_long_is_given_up(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            reader = link.reader()
            waiting = asyncio.create_task(reader.block("BLPOP", link.key("l"), 0, wait=0.0))
            with pytest.raises(Away, match="does not answer"):
                await waiting
            await eventually(lambda: link.up)

    asyncio.run(run())
