from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import dns.rcode
import pytest

from gateway.config import ConfigError, Discovery, convert
from gateway.fleet.backend import Source
from gateway.types import EngineKind
from tests.fleet.discovery.following import Following
from tests.fleet.discovery.name_server import FakeNameServer

Scene = Callable[[FakeNameServer, Following], Awaitable[None]]
HOST = "engines.test"
A = (HOST, "A")
SRV = ("_http._tcp.engines.test", "SRV")


def play(
    scene: Scene,
    records: dict[tuple[str, str], list[str]],
    *,
    linger: float = 60.0,
    **options: Any,
) -> None:
    async def run() -> None:
        async with FakeNameServer() as server:
            server.records = {(name + ".", kind): data for (name, kind), data in records.items()}
            given = {
                "host": HOST,
                "port": 8000,
                "interval": 0.05,
                "timeout": 0.5,
                "hold": 0.0,
                "servers": [server.address],
                **options,
            }
            async with Following(linger=linger, dns=[given]) as here:
                await scene(server, here)

    asyncio.run(run())


def put(server: FakeNameServer, name: str, kind: str, *data: str) -> None:
    server.records[(name + ".", kind)] = list(data)


def test_each_address_is_a_backend() -> None:
    async def scene(server: FakeNameServer, here: Following) -> None:
        await here.lists("10.0.0.1:8000", "10.0.0.2:8000")
        one = here.the("10.0.0.1:8000")
        assert (one.source, one.kind) == (Source.DNS, EngineKind.VLLM)
        assert one.address.url == "http://10.0.0.1:8000"
        put(server, HOST, "A", "10.0.0.3", "10.0.0.1")
        await here.lists("10.0.0.1:8000", "10.0.0.3:8000")
        assert here.the("10.0.0.1:8000") is one
        assert here.state.failures == 0

    play(scene, {A: ["10.0.0.1", "10.0.0.2"]}, backend={"kind": "vllm"})


def test_ipv6_and_https() -> None:
    async def scene(server: FakeNameServer, here: Following) -> None:
        await here.lists("[fd00::1]", "[fd00::2]")
        assert here.the("[fd00::1]").address.url == "https://[fd00::1]"

    records = {(HOST, "AAAA"): ["fd00::1", "fd00:0::2"], A: ["10.0.0.1"]}
    play(scene, records, record="AAAA", port=443, scheme="https")


def test_services_bring_their_ports_and_may_be_renamed() -> None:
    async def scene(server: FakeNameServer, here: Following) -> None:
        await here.lists("10.0.0.1:8000", "10.0.0.2:8001")
        one = here.the("10.0.0.1:8000")
        # The same address under another name is the same engine.
        put(server, "c.test", "A", "10.0.0.1")
        put(server, *SRV, "0 0 8000 c.test.", "0 0 8001 b.test.")
        await here.is_read()
        assert here.listed == {"10.0.0.1:8000", "10.0.0.2:8001"}
        assert here.the("10.0.0.1:8000") is one
        # Another address under the same name is another.
        put(server, "b.test", "A", "10.0.0.9")
        await here.lists("10.0.0.1:8000", "10.0.0.9:8001")
        assert here.the("10.0.0.2:8001").unlisted
        # A target of which there is nothing brings nothing; one without IPv4 its IPv6 addresses.
        put(server, "v6.test", "AAAA", "fd00::1")
        put(server, *SRV, "0 0 8000 c.test.", "0 0 8001 gone.test.", "0 0 8002 v6.test.")
        await here.lists("10.0.0.1:8000", "[fd00::1]:8002")
        put(server, *SRV, "0 0 0 .")
        await here.lists()

    records = {
        SRV: ["0 0 8000 a.test.", "0 0 8001 b.test."],
        ("a.test", "A"): ["10.0.0.1"],
        ("b.test", "A"): ["10.0.0.2"],
    }
    play(scene, records, host=SRV[0], record="SRV", port=None)


def test_long_answers_come_over_tcp() -> None:
    addresses = [f"10.0.{n // 250}.{n % 250}" for n in range(300)]

    async def scene(server: FakeNameServer, here: Following) -> None:
        server.truncates = True
        await here.lists(*(f"{address}:8000" for address in addresses))
        assert {"udp", "tcp"} == {transport for transport, *_ in server.asked}

    play(scene, {A: addresses})


def breaks(server: FakeNameServer, how: str) -> None:
    if how == "silent":
        server.silent = True
    elif how == "garbage":
        server.garbage = True
    else:
        server.rcode = dns.rcode.from_text(how)


@pytest.mark.parametrize("how", ["SERVFAIL", "REFUSED", "silent", "garbage"])
def test_a_name_server_that_fails_changes_nothing(how: str) -> None:
    async def scene(server: FakeNameServer, here: Following) -> None:
        await here.lists("10.0.0.1:8000", "10.0.0.2:8000")
        heard = here.heard
        breaks(server, how)
        await here.fails("")
        await here.fails("")
        assert here.state.cause
        assert here.heard == heard
        # What was lost meanwhile is made up for.
        server.rcode, server.silent, server.garbage = dns.rcode.NOERROR, False, False
        put(server, HOST, "A", "10.0.0.2")
        await here.lists("10.0.0.2:8000")
        assert here.state.cause == ""

    play(scene, {A: ["10.0.0.1", "10.0.0.2"]})


@pytest.mark.parametrize("how", ["no name", "no data"])
def test_none_is_an_answer_too(how: str) -> None:
    async def scene(server: FakeNameServer, here: Following) -> None:
        await here.lists("10.0.0.1:8000")
        server.records.clear()
        if how == "no data":
            put(server, HOST, "TXT", '"x"')
        await here.lists()
        assert here.state.failures == 0

    play(scene, {A: ["10.0.0.1"]})


def test_an_address_stays_listed_for_a_while() -> None:
    """Answers that have a part of all at a time, and one that has none for a moment."""

    async def scene(server: FakeNameServer, here: Following) -> None:
        everything = {f"10.0.0.{n}:8000" for n in range(4)}
        await here.until(lambda: bool(here.listed))
        for number in range(12):
            address = f"10.0.0.{number % 4}"
            if number == 6:
                server.records.clear()
            else:
                put(server, HOST, "A", address)
            await here.is_read()
        assert here.listed == everything
        assert here.removed == []

    play(scene, {A: ["10.0.0.0"]}, hold=60.0, interval=0.02)


def test_one_that_flaps_stays_what_it_was() -> None:
    async def scene(server: FakeNameServer, here: Following) -> None:
        await here.lists("10.0.0.1:8000", "10.0.0.2:8000")
        one = here.the("10.0.0.1:8000")
        for _ in range(3):
            put(server, HOST, "A", "10.0.0.2")
            await here.lists("10.0.0.2:8000")
            put(server, HOST, "A", "10.0.0.1", "10.0.0.2")
            await here.lists("10.0.0.1:8000", "10.0.0.2:8000")
        assert here.the("10.0.0.1:8000") is one
        assert here.removed == []

    play(scene, {A: ["10.0.0.1", "10.0.0.2"]})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"host": "x"}, "port must be given with record A"),
        ({"host": "x", "record": "SRV", "port": 1}, "port must be left out with record SRV"),
        ({"host": "x", "port": 0}, r"dns\[0\].port"),
        ({"host": "x", "port": 1, "record": "TXT"}, r"dns\[0\].record.*one of A, AAAA, SRV"),
        ({"host": "x", "port": 1, "servers": ["ns1"]}, "servers: 'ns1' is not an IP address"),
        ({"host": "x", "port": 1, "servers": ["[::1]:x"]}, "servers"),
        ({"host": "x", "port": 1, "hold": -1}, "hold"),
        ({"host": "x", "port": 1, "scheme": "ftp"}, "scheme"),
        ({"host": "x", "port": 1, "backend": {"rol": "decode"}}, "unknown field `rol`"),
        ({"host": "x", "port": 1, "backend": {"models": []}}, "models"),
        ({"host": "a..b", "port": 1}, "discovery.dns: host: 'a..b'"),
        ({"host": "x" * 64, "port": 1}, "discovery.dns: host"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Following(dns=[options])


@pytest.mark.parametrize("server", ["127.0.0.1", "127.0.0.1:5353", "::1", "[::1]", "[::1]:5353"])
def test_name_servers(server: str) -> None:
    given = {"dns": [{"host": "x", "port": 1, "servers": [server]}]}
    assert convert(given, Discovery, "test").dns[0].servers == [server]
