"""The servers that a link can lead to: how they let it in, and who of several takes writes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import BackendTls, ConfigError, Redis, SecretRef
from gateway.shared.breaker import Outcome
from gateway.shared.link import Link
from gateway.shared.records import Away, Refused
from gateway.shared.servers import Servers
from loadtests.redis.server import RedisServer, has_tls
from loadtests.redis.sets import RedisCluster, RedisSentinels, cluster_port
from tests.harness.certificates import Authority
from tests.harness.gateway_process import free_port
from tests.shared.links import eventually, linked

ADD = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
USER = "gw on >hunter2-of-gw ~{prefixgate:*}* -@all"
RUN = "+evalsha +eval +set +get +incrby +select"


def cause_of(url: str, **options: object) -> str:
    async def run() -> str:
        async with linked(url, **options) as link:
            return link.state.cause

    return asyncio.run(run())


async def add_two(link: Link) -> None:
    """Whether commands and scripts go through."""
    assert link.up, link.state.cause
    keys = [link.key("n")]
    await link.call("SET", keys[0], 0)
    assert await link.run(ADD, keys, [2]) == 2


def works(url: str, **options: object) -> None:
    async def run() -> None:
        async with linked(url, **options) as link:
            await add_two(link)

    asyncio.run(run())


def test_a_unix_socket_and_a_database(tmp_path: Path) -> None:
    socket = tmp_path / "r.sock"
    with RedisServer(unixsocket=socket) as server:
        works(f"unix://{socket}?db=3")
        assert server.command("GET", "{prefixgate:prefixgate}:n") == b"$-1\r\n"
        assert b"db3:" in (server.command("INFO", "keyspace") or b"")
        assert "has no database 99 (ERR)" in cause_of(f"{server.url}/99")


def test_a_password_and_a_user(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with RedisServer(requirepass="hunter2-of-all", user=f"{USER} {RUN}") as server:
        port = server.port
        file = tmp_path / "password"
        file.write_text("hunter2-of-all\n", encoding="utf-8")
        file.chmod(0o600)
        works(f"redis://:hunter2-of-all@127.0.0.1:{port}")
        works(server.url, password=SecretRef(file=str(file)))
        works(f"redis://gw:hunter2-of-gw@127.0.0.1:{port}")
        works(server.url, username="gw", password="hunter2-of-gw")
        assert "wants a password" in cause_of(server.url)
        assert "refuses the user or the password" in cause_of(server.url, password="hunter2")
    with RedisServer() as server:
        assert "wants no password, and was given one" in cause_of(server.url, password="hunter2")
        service = {"sentinel_service": "mymaster"}
        assert f"127.0.0.1:{server.port} is no Sentinel" in cause_of(server.url, **service)
    assert "hunter2" not in caplog.text


def test_a_user_who_may_do_little(caplog: pytest.LogCaptureFixture) -> None:
    """No HELLO, INFO, CONFIG, KEYS, SCRIPT or CLIENT, and then no scripts at all."""

    async def run(password: str) -> None:
        url = f"redis://gw:{password}@127.0.0.1:{server.port}"
        async with linked(url) as link:
            await add_two(link)
            server.command("ACL", "SETUSER", "gw", "-eval", "-evalsha")
            for _ in range(3):
                with pytest.raises(Refused, match=r"^NOPERM "):
                    await link.run(ADD, [link.key("n")], [1])
            assert link.up

    with RedisServer(user=f"{USER} {RUN}") as server:
        asyncio.run(run("hunter2-of-gw"))
    said = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert len(said) == 1
    assert "does not allow EVALSHA" in said[0].getMessage()
    assert "hunter2" not in caplog.text


def test_a_server_without_administrative_commands() -> None:
    gone = [f'{name} ""' for name in ("SCRIPT", "KEYS", "CONFIG", "CLIENT", "DEBUG", "HELLO")]
    with RedisServer(rename_command=gone) as server:
        assert (server.command("CONFIG", "GET", "*") or b"").startswith(b"-ERR unknown command")
        works(server.url)


@pytest.mark.parametrize("hello", [True, False])
def test_a_server_that_is_too_old_is_named(hello: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            if b"HELLO" in data and hello:
                writer.write(
                    b"*4\r\n$7\r\nversion\r\n$6\r\n6.0.16\r\n$4\r\nrole\r\n$6\r\nmaster\r\n"
                )
            elif b"INFO" in data:
                writer.write(b"$31\r\n# Server\r\nredis_version:5.0.7\r\n\r\n")
            else:
                writer.write(b"+OK\r\n" if b"SET" in data else b"-ERR unknown command\r\n")

    async def run() -> None:
        port = free_port()
        listener = await asyncio.start_server(serve, "127.0.0.1", port)
        async with listener, linked(f"redis://127.0.0.1:{port}") as link:
            assert link.up, link.state.cause
            with pytest.raises(Refused):
                await link.reader().block("XREAD", wait=0.0)

    asyncio.run(run())
    assert caplog.text.count("expected 6.2 or newer") == 1
    version = "6.0" if hello else "5.0"
    assert f"has version {version}, expected 6.2 or newer" in caplog.text


@pytest.mark.skipif(not has_tls(), reason="this redis-server has no TLS")
def test_tls(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    files, client = authority.issue("redis.test"), authority.issue("gateway")
    port = free_port()
    options = {"tls_port": port, "tls_cert_file": files.cert, "tls_key_file": files.key}
    with RedisServer(**options, tls_ca_cert_file=authority.ca, tls_auth_clients="yes"):
        url = f"rediss://127.0.0.1:{port}"
        own = {"cert": client.cert, "key": client.key}
        right = {"ca": authority.ca, "server_name": "redis.test", **own}
        works(url, tls=BackendTls(**right))
        works(url, tls=BackendTls(insecure=True, **own))
        for changed, cause in (
            ({"ca": other.ca}, "TLS fails: self-signed certificate"),
            ({"server_name": None}, "TLS fails: IP address mismatch"),
            ({"cert": None, "key": None}, f"127.0.0.1:{port}"),
        ):
            assert cause in cause_of(url, tls=BackendTls(**(right | changed)))
        # and a server that speaks TLS to one who does not
        assert "does not answer" in cause_of(f"redis://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Redis(url="redis://u@r"), "redis.url: has a user, expected a password there"),
        (Redis(url="redis://:a@r", password="b"), "redis.password: the password is in redis.url"),
        (Redis(url=SecretRef(env="NO_SUCH_URL")), "redis.url: the secret"),
        (Redis(url="rediss://r", tls=BackendTls(ca="/none.pem")), "redis.tls.ca: /none.pem"),
        (
            Redis(url="redis://r", tls=BackendTls(insecure=True)),
            "redis.tls: has no use without TLS",
        ),
    ],
)
def test_settings_that_cannot_be_used(settings: Redis, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Servers(settings)
    assert message in str(error.value)


def test_of_several_servers_the_primary_is_used() -> None:
    with RedisServer() as primary, RedisServer(replicaof=f"127.0.0.1 {primary.port}") as replica:
        nobody = free_port()
        works(f"redis://127.0.0.1:{nobody},127.0.0.1:{replica.port},127.0.0.1:{primary.port}")
        assert "is a replica" in cause_of(f"redis://127.0.0.1:{nobody},127.0.0.1:{replica.port}")


@pytest.fixture(scope="module")
def sentinels() -> Iterator[RedisSentinels]:
    with RedisSentinels() as started:
        yield started


def test_it_follows_sentinels_through_failovers(sentinels: RedisSentinels) -> None:
    nobody = f"redis://127.0.0.1:{free_port()},{sentinels.url.removeprefix('redis://')}"

    async def run() -> None:
        async with linked(nobody, timeout=0.5, sentinel_service=sentinels.SERVICE) as link:
            await add_two(link)
            first = link.state.server
            reader = link.reader()
            name = link.key("n").decode()
            two = b"$1\r\n2\r\n"
            await eventually(lambda: sentinels.servers[1].command("GET", name) == two)
            # by hand: the old primary is well, and takes writes for some seconds more
            await asyncio.to_thread(sentinels.fail_over)
            await eventually(lambda: link.up and link.state.server != first, 6)
            assert link.state.server == f"127.0.0.1:{sentinels.primary.port}"
            assert await link.call("GET", link.key("n")) == b"2"
            # by need: it does not answer any more
            second = sentinels.primary
            second.freeze()
            await eventually(lambda: link.up and link.state.server == first)
            assert await link.call("INCR", link.key("m")) == 1
            words = ("XREAD", "BLOCK", 10, "STREAMS", link.key("s"), 0)
            assert await reader.block(*words, wait=0.01) is None
            second.resume()

    asyncio.run(run())


def test_sentinels_that_are_taken_for_servers_and_know_no_such_service(
    sentinels: RedisSentinels,
) -> None:
    assert "is a Sentinel: redis.sentinel_service is not set" in cause_of(sentinels.url)
    assert "knows no service 'other'" in cause_of(sentinels.url, sentinel_service="other")


def test_sentinels_with_a_password_of_their_own() -> None:
    with RedisServer(requirepass="a") as server:
        sentinel = RedisServer(
            requirepass="b", sentinel=[f"monitor s 127.0.0.1 {server.port} 1", "auth-pass s a"]
        )
        with sentinel:
            own = {"sentinel_service": "s", "password": "a"}
            works(sentinel.url, **own, sentinel_password="b")
            assert "wants a password" in cause_of(sentinel.url, **own)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as started:
        yield started


def test_all_keys_are_in_one_slot_of_a_cluster(cluster: RedisCluster) -> None:
    works(cluster.url)
    for node in cluster.nodes:
        works(node.url)
        works(node.url, namespace="other")


def test_it_follows_a_slot_that_moves(cluster: RedisCluster) -> None:
    async def run() -> None:
        async with linked(cluster.url) as link:
            old, young = link.key("old"), link.key("young")
            owner = cluster.owner(old)
            to = next(node for node in cluster.nodes if node is not owner)
            assert link.state.server.endswith(f":{owner.port}")
            await link.call("SET", old, 1)
            reader = link.reader()
            words = ("XREAD", "BLOCK", 10, "STREAMS", link.key("s"), 0)
            assert await reader.block(*words, wait=0.01) is None
            cluster.begin_move(old, to)
            assert await link.call("INCR", old) == 2  # still there
            assert await link.call("INCR", young) == 1  # already here
            assert await link.run(ADD, [young], [1]) == 2
            with pytest.raises(Away, match="is moving our keys"):
                await link.run(ADD, [old, link.key("none")], [1])
            with pytest.raises(Away, match="is moving our keys"):
                await reader.block(*words, wait=0.01)
            assert link.up
            assert link.state.commands[Outcome.LOST] == 1
            cluster.end_move(old, owner, to)
            assert cluster.owner(old) is to
            results = await asyncio.gather(*(link.call("INCR", old) for _ in range(20)))
            assert sorted(results) == [*range(3, 23)]
            assert await link.call("GET", young) == b"2"
            assert await reader.block(*words, wait=0.01) is None
            assert link.up
            assert link.state.commands[Outcome.LOST] == 1
            # who comes now is led there from whichever node it asks
            async with linked(owner.url) as other:
                assert await other.call("GET", young) == b"2"

    asyncio.run(run())


def test_a_cluster_without_our_slot() -> None:
    with RedisServer(cluster_port(), cluster_enabled="yes") as node:
        assert "CLUSTERDOWN" in cause_of(node.url)


def test_Z01_the_cause_is_told_to_callers() -> None:
    async def run() -> None:
        server = RedisServer()
        async with linked(server.url) as link:
            with pytest.raises(Away, match="Connection refused"):
                await link.call("PING")

    asyncio.run(run())
