"""The link against a real Redis: what callers get, and how it fares when Redis does not."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Iterator

import pytest
import uvloop

from gateway.shared.breaker import Outcome
from gateway.shared.link import Link
from gateway.shared.records import Away, Refused
from loadtests.redis.server import RedisServer
from tests.harness.gateway_process import free_port
from tests.harness.tcp_proxy import TcpProxy, Way
from tests.shared.links import eventually, linked

ADD = "return redis.call('INCRBY', KEYS[1], ARGV[1])"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> Iterator[RedisServer]:
    """As new."""
    yield shared_server
    shared_server.resume()
    shared_server.command("REPLICAOF", "NO", "ONE")
    shared_server.command("CONFIG", "SET", "maxmemory", "0")
    shared_server.command("SCRIPT", "FLUSH")
    shared_server.command("FLUSHALL")


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as proxy:
        yield proxy


def url_of(proxy: TcpProxy) -> str:
    return f"redis://127.0.0.1:{proxy.port}"


def connected(server: RedisServer) -> int:
    """Clients that the server has, besides the one that asks."""
    facts = (server.command("INFO", "clients") or b"").split()
    [count] = [fact for fact in facts if fact.startswith(b"connected_clients:")]
    return int(count.partition(b":")[2]) - 1


async def ask_in_vain(link: Link, calls: int = 100) -> tuple[int, int]:
    """Calls at 100 a second, all of which have to come to nothing.

    Returns:
        How many of them waited at all, and how many of the second half of them.
    """
    skipped: list[bool] = []

    async def one() -> None:
        before = link.state.commands[Outcome.SKIPPED]
        with pytest.raises(Away):
            await link.call("INCR", link.key("n"))
        skipped.append(link.state.commands[Outcome.SKIPPED] > before)

    async with asyncio.TaskGroup() as group:
        for _ in range(calls):
            group.create_task(one())
            await asyncio.sleep(0.01)
    return skipped.count(False), skipped[calls // 2 :].count(False)


def test_commands_and_their_answers(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url, namespace="x") as link:
            assert link.up
            key = link.key("a", "b")
            assert key == b"{prefixgate:x}:a:b"
            assert await link.call("SET", key, b"\0\r\n\xff") == b"OK"
            assert await link.call("GET", key) == b"\0\r\n\xff"
            assert await link.call("INCRBY", link.key("n"), 3) == 3
            assert await link.call("MGET", key, link.key("none")) == [b"\0\r\n\xff", None]
            with pytest.raises(Refused, match=r"^WRONGTYPE "):
                await link.call("LPUSH", key, 1.5)
            assert link.up
            commands = link.state.commands
            assert (commands[Outcome.DONE], commands[Outcome.REFUSED]) == (4, 1)
            assert link.state.seconds > 0

    asyncio.run(run())


def test_scripts_go_out_in_full_only_where_they_are_not_known(server: RedisServer) -> None:
    def sent() -> list[int]:
        stats = (server.command("INFO", "commandstats") or b"").decode().splitlines()
        counts = {line.partition(":")[0]: line for line in stats}
        names = ("cmdstat_eval", "cmdstat_evalsha")
        return [
            int(counts[each].split("=")[1].split(",")[0]) if each in counts else 0 for each in names
        ]

    async def run() -> None:
        server.command("CONFIG", "RESETSTAT")
        async with linked(server.url) as link:
            keys = [link.key("n")]
            assert [await link.run(ADD, keys, [2]) for _ in range(3)] == [2, 4, 6]
            assert sent() == [1, 3]
            server.command("SCRIPT", "FLUSH")
            assert await link.run(ADD, keys, [2]) == 8
            assert sent() == [2, 4]
            with pytest.raises(Refused, match=r"^ERR "):
                await link.run("return redis.call('NONE')", keys, [])
            assert link.up

    asyncio.run(run())


def test_Z01_a_redis_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        server = RedisServer()
        async with linked(server.url) as link:
            assert not link.up
            assert (
                link.state.cause == f"127.0.0.1:{server.port} cannot be reached: Connection refused"
            )
            assert await ask_in_vain(link, 20) == (0, 0)
            with server:
                await eventually(lambda: link.up)
                assert await link.call("PING") == b"PONG"
                server.kill()
                await eventually(lambda: not link.up)
                server.start()
                await eventually(lambda: link.up)

    caplog.set_level(logging.INFO, "prefixgate.redis")
    asyncio.run(run())
    assert [record.levelname for record in caplog.records] == [
        *("WARNING", "INFO", "WARNING", "INFO")
    ]


def test_Z01_b_redis_frozen(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url, timeout=0.05) as link:
            server.freeze()
            # three times in a row 50 ms, which those that come meanwhile wait too
            waited, late = await ask_in_vain(link)
            assert waited < 50
            assert late == 0
            server.resume()
            await eventually(lambda: link.up, 5)
            assert await link.call("INCR", link.key("n")) > 0

    asyncio.run(run())


def test_Z01_c_redis_slow(server: RedisServer, proxy: TcpProxy) -> None:
    async def run() -> None:
        async with linked(url_of(proxy), timeout=0.05) as link:
            await eventually(lambda: link.up)
            proxy.behave(down=Way(delay=3.0))
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            waited, late = await ask_in_vain(link)
            assert waited < 50
            assert late == 0
            proxy.behave()
            await eventually(lambda: link.up, 5)

    asyncio.run(run())


def test_Z01_c_answers_a_little_too_late(proxy: TcpProxy) -> None:
    async def run() -> None:
        proxy.behave(down=Way(delay=0.1))
        async with linked(url_of(proxy), timeout=0.05) as link:
            assert link.state.cause == f"127.0.0.1:{proxy.port} takes longer than 0.05 s"
        async with linked(url_of(proxy), timeout=2.0) as link:  # the control: all else is well
            assert link.up
            with pytest.raises(Away):
                await link.call("PING", timeout=0.05)
            assert await link.call("PING") == b"PONG"
            assert link.up

    asyncio.run(run())


def test_a_busy_event_loop_is_no_slow_redis(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url, timeout=0.05) as link:
            await eventually(lambda: link.up)
            asked = [asyncio.create_task(link.call("PING")) for _ in range(3)]
            await asyncio.sleep(0)
            time.sleep(0.2)  # noqa: ASYNC251  # it is the point
            assert await asyncio.gather(*asked) == [b"PONG"] * 3

    # it holds because both look at sockets before timers
    for new in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=new) as runner:
            runner.run(run())


def test_commands_share_a_few_connections(proxy: TcpProxy) -> None:
    async def run() -> None:
        proxy.behave(up=Way(delay=0.05))
        async with linked(url_of(proxy), timeout=10.0, max_connections=3) as link:
            for _ in range(5):
                await asyncio.gather(*(link.call("PING") for _ in range(20)))
            assert proxy.connections == 3

    asyncio.run(run())


def test_Z01_d_redis_read_only(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            server.command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(Away, match="is read-only"):
                await link.run(ADD, [link.key("n")], [1])
            assert not link.up
            assert "READONLY" in link.state.cause
            await asyncio.sleep(1.2)  # reads would be answered
            assert not link.up
            server.command("REPLICAOF", "NO", "ONE")
            await eventually(lambda: link.up, 5)

    asyncio.run(run())


def test_Z01_d_redis_out_of_memory(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            for _ in range(3):
                server.command("CONFIG", "SET", "maxmemory", "1")
                with pytest.raises(Away, match="is out of memory"):
                    await link.call("INCR", link.key("n"))
                assert not link.up
                server.command("CONFIG", "SET", "maxmemory", "0")
                await eventually(lambda: link.up, 5)
            await eventually(lambda: connected(server) == 1)

    asyncio.run(run())


def test_a_frozen_redis_is_noticed_without_calls(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url, timeout=0.05) as link:
            await eventually(lambda: link.up)
            server.freeze()
            await eventually(lambda: not link.up)

    asyncio.run(run())


def test_nothing_is_asked_once_it_has_stopped(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            server.freeze()
            under_way = asyncio.create_task(link.call("PING", timeout=30.0))
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            with pytest.raises(Away):
                await under_way
        with pytest.raises(Away, match="stopped"):
            await link.call("PING")

    asyncio.run(run())


def test_Z03_a_killed_connection_is_made_again(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            await link.call("SET", link.key("x"), "still here")
            for number in range(1, 4):
                server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
                assert await link.call("GET", link.key("x"), timeout=1.0) == b"still here"
                assert link.state.reconnects >= number
            commands = link.state.commands
            assert commands[Outcome.LOST] == commands[Outcome.TIMEOUT] == 0
            assert link.up

    asyncio.run(run())


@pytest.mark.parametrize(("command", "comes"), [("GET", True), ("INCR", False)])
def test_Z03_only_what_changes_nothing_is_sent_twice(
    server: RedisServer, command: str, comes: bool
) -> None:
    async def run() -> None:
        async with linked(server.url, timeout=5.0) as link:
            server.freeze()
            asked = asyncio.create_task(link.call(command, link.key("n")))
            await asyncio.sleep(0.05)
            for connection in [*link._connections._open]:
                connection.abort()
            server.resume()
            if comes:
                assert await asked is None
            else:
                with pytest.raises(Away):
                    await asked
                assert link.state.commands[Outcome.LOST] == 1
            assert link.up

    asyncio.run(run())


def test_Z06_cancelled_callers_shift_no_answers(proxy: TcpProxy) -> None:
    rng = random.Random(6)

    async def look_up(link: Link, number: int) -> None:
        assert await link.call("GET", link.key(str(number))) == b"%d" % number

    async def run() -> None:
        proxy.behave(up=Way(delay=0.05))
        async with linked(url_of(proxy), timeout=10.0) as link:
            for number in range(0, 200, 100):
                keys = range(number, number + 100)
                await asyncio.gather(*(link.call("SET", link.key(str(n)), n) for n in keys))
            cancelled = 0
            async with asyncio.TaskGroup() as group:
                for _ in range(2000):
                    task = group.create_task(look_up(link, rng.randrange(200)))
                    if rng.random() < 0.3:
                        cancelled += 1
                        asyncio.get_running_loop().call_later(rng.uniform(0, 0.1), task.cancel)
                    await asyncio.sleep(0)
            assert cancelled > 500
            assert link.state.commands[Outcome.DONE] >= 200 + 2000 - cancelled
            assert proxy.connections <= 2

    asyncio.run(run())


def test_Z07_cancellations_lose_no_connection(proxy: TcpProxy) -> None:
    async def run() -> None:
        proxy.behave(up=Way(delay=0.02))
        async with linked(url_of(proxy), timeout=10.0, max_connections=10) as link:
            keys = [link.key("n")]
            for _ in range(50):
                tasks = [asyncio.create_task(link.run(ADD, keys, [1])) for _ in range(100)]
                await asyncio.sleep(random.uniform(0, 0.01))
                for task in tasks:
                    task.cancel()
            await link.call("PING")
            began = time.perf_counter()
            await asyncio.gather(*(link.call("GET", keys[0]) for _ in range(10)))
            assert time.perf_counter() - began < 1.0
            assert proxy.connections <= 10
            assert link.up

    asyncio.run(run())


def test_a_caller_that_gives_up_leaves_the_command_to_be_done(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            server.freeze()
            task = asyncio.create_task(link.call("INCR", link.key("n")))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            server.resume()
            assert await link.call("GET", link.key("n"), timeout=5.0) == b"1"

    asyncio.run(run())


def test_a_server_that_answers_nothing_sensible(caplog: pytest.LogCaptureFixture) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def run() -> None:
        port = free_port()
        listener = await asyncio.start_server(serve, "127.0.0.1", port)
        async with listener, linked(f"redis://:hunter2@127.0.0.1:{port}") as link:
            assert not link.up
            assert "does not answer" in link.state.cause

    asyncio.run(run())
    assert "hunter2" not in caplog.text


def test_a_script_that_redis_has_not_seen_is_no_refusal(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            server.command("SCRIPT", "FLUSH")
            assert await link.run("return 1", [], []) == 1
            assert link.state.commands[Outcome.REFUSED] == 0
            with pytest.raises(Refused):
                await link.run("return redis.error_reply('NO')", [], [])
            assert link.state.commands[Outcome.REFUSED] == 1

    asyncio.run(run())


def test_a_redis_that_comes_and_goes_is_let_alone_for_longer(server: RedisServer) -> None:
    async def run() -> None:
        async with linked(server.url) as link:
            came_up = 0
            deadline = time.monotonic() + 2.0
            while time.monotonic() < deadline:
                if link.up:
                    came_up += 1
                    link._breaker.down("full")
                await asyncio.sleep(0.005)
            assert 2 <= came_up <= 4  # at 0, 0.5 and 1.5 s
            await asyncio.wait_for(until_up(link), 10)

    async def until_up(link: Link) -> None:
        while not link.up:  # noqa: ASYNC110 - a link has no event to wait for
            await asyncio.sleep(0.01)

    asyncio.run(run())
