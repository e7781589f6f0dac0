from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gateway.config import BackendConfig, BackendTls, ConfigError, Health, SecretRef
from gateway.fleet.access import Accesses
from gateway.fleet.address import Address
from gateway.fleet.allow import AddressNotAllowed, AllowRule
from gateway.fleet.backend import Source
from gateway.fleet.fleet import Fleet
from gateway.fleet.reconciler import Reconciler


def admits(url: str, *entries: str) -> bool:
    rule, address = AllowRule(entries), Address.parse(url)
    try:
        rule.check(address)
    except ConfigError:
        return False
    return True


METADATA = [
    "http://169.254.169.254",
    "http://169.254.170.2:8000",
    "http://[fd00:ec2::254]",
    "http://[fe80::1]:8000",
    "http://metadata.google.internal",
    "http://METADATA.google.internal.",
    "http://100.100.100.200",
    "http://168.63.129.16",
    "http://0.0.0.0:8000",
    "http://[::]:8000",
    "http://224.0.0.1:8000",
    # the same in IPv6's clothes
    "http://[::ffff:169.254.169.254]",
    "http://[::ffff:a9fe:a9fe]",
    "http://[64:ff9b::a9fe:a9fe]",
    "http://[2002:a9fe:a9fe::1]",
    "http://[::a9fe:a9fe]",
]


@pytest.mark.parametrize("url", METADATA)
def test_metadata_and_link_local_are_refused_with_any_rule(url: str) -> None:
    assert not admits(url)
    assert not admits(url, "0.0.0.0/0", "::/0")


@pytest.mark.parametrize("url", ["http://10.0.0.5:8000", "http://gpu1:8000", "https://[fd00::5]:1"])
def test_without_entries_everything_else_is_allowed(url: str) -> None:
    assert admits(url)


def test_an_entry_of_its_own_allows_even_those() -> None:
    assert admits("http://169.254.7.7:8000", "169.254.7.0/24:8000")
    assert not admits("http://169.254.169.254:8000", "169.254.7.0/24")
    assert admits("http://metadata.google.internal:80", "metadata.google.internal:80")


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.5:9090",
        "http://10.0.0.5",
        "http://10.0.0.6:8000",
        "http://10.0.0.5.evil:8000",
        "http://[::ffff:10.0.0.5]:8000",
        "http://10.0.0.5.nip.io:8000",
        "http://gpu1:8001",
        "http://gpu1.evil:8000",
        "http://notgpu1:8000",
        "http://pool.example:8000",
        "http://evilpool.example:8000",
        "http://[fd00::6]:8000",
        "http://10.1.0.1:8001",
    ],
)
def test_V02_host_and_port_are_one(url: str) -> None:
    assert not admits(url, *ENTRIES)


ENTRIES = (
    *("10.0.0.5:8000", "gpu1:8000", "*.pool.example:8000", "[fd00::5]:8000"),
    *("10.1.0.0/16:8000", "10.2.0.0/16", "[fd01::/16]:8000", "fd02::/16", "gpu2:*"),
)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://10.0.0.5:8000",
            "https://10.0.0.5:8000/base",
            "http://GPU1:8000",
            "http://gpu1.:8000",
        ),
        *("http://a.pool.example:8000", "http://b.a.pool.example:8000", "http://[fd00::5]:8000"),
        *(
            "http://10.1.2.3:8000",
            "http://10.2.3.4:1",
            "http://[fd01::1]:8000",
            "http://[fd02::1]:1",
        ),
        *("http://gpu2:1", "http://gpu2:65535"),
    ],
)
def test_V02_what_is_listed_is_allowed(url: str) -> None:
    assert admits(url, *ENTRIES)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.5:8000@evil/", "http://evil@10.0.0.5:8000", "http://10.0.0.5:8000#@evil"]
)
def test_V02_tricks_with_user_info_are_no_addresses(url: str) -> None:
    with pytest.raises(ConfigError):
        admits(url, "10.0.0.5:8000")


@pytest.mark.parametrize(
    "entry", ["gpu1", "10.0.0.5", "10.0.0.5/8:1", "gpu1:99999", "gpu1:0", "a b:1", "", "10.0.0:80"]
)
def test_an_entry_that_is_not_clear_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError, match=r"admin.allow_backends: "):
        AllowRule([entry])


def resolves(rule: AllowRule, host: str, *addresses: str) -> list[str]:
    """What `host` may be connected to while a resolver gives these addresses."""

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()

        async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
            return [(0, socket.SOCK_STREAM, 0, "", (address, port)) for address in addresses]

        loop.getaddrinfo = getaddrinfo
        return await rule.resolve(host, 8000)

    return asyncio.run(main())


def test_V02_what_a_name_resolves_to_is_looked_at_with_each_connection() -> None:
    rule = AllowRule(["gpu1:8000"])
    assert resolves(rule, "gpu1", "10.0.0.5", "10.0.0.6") == ["10.0.0.5", "10.0.0.6"]
    # The name was good when it was added; now it points elsewhere.
    for address in ("169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "0.0.0.0"):
        with pytest.raises(AddressNotAllowed):
            resolves(rule, "gpu1", address)
        assert resolves(rule, "gpu1", address, "10.0.0.5") == ["10.0.0.5"]


def reconciler(*allowed: str) -> tuple[Fleet, Reconciler]:
    fleet = Fleet(Health(), lambda: 0.0, accesses=Accesses(None, AllowRule(allowed)))
    return fleet, Reconciler(fleet, lambda: 0.0, 0.0)


def test_only_what_is_added_while_running_is_checked() -> None:
    fleet, sources = reconciler("10.0.0.0/8")
    here = BackendConfig(url="http://127.0.0.1:8000")
    with pytest.raises(ConfigError):
        sources.add(here)
    sources.offer(Source.DNS, [])  # whatever happens next, it was not taken in
    assert list(fleet) == []
    sources.offer(Source.CONFIG, [here])
    [backend] = fleet
    assert backend.access.rule is None
    there = BackendConfig(url="http://10.0.0.1:8000")
    assert sources.add(there).backend.access.rule is not None


@pytest.mark.parametrize(
    "entry",
    [
        BackendConfig(url="http://10.0.0.1", api_key=SecretRef(env="HOME")),
        BackendConfig(url="http://10.0.0.1", api_key=SecretRef(file="/etc/hostname")),
        BackendConfig(url="https://10.0.0.1", tls=BackendTls(insecure=True)),
    ],
)
def test_who_adds_a_backend_cannot_have_files_and_variables_sent_to_it(
    entry: BackendConfig,
) -> None:
    fleet, sources = reconciler()
    with pytest.raises(ConfigError):
        sources.add(entry)
    assert list(fleet) == []
    sources.offer(Source.CONFIG, [entry])
    assert len(list(fleet)) == 1


def test_a_key_that_is_not_there_names_the_option_and_the_place() -> None:
    entry = BackendConfig(url="http://10.0.0.1", api_key=SecretRef(env="PREFIXGATE_NOT_THERE"))
    with pytest.raises(ConfigError, match=r"http://10.0.0.1: api_key: .*PREFIXGATE_NOT_THERE"):
        Fleet(Health(), lambda: 0.0).add(entry)


def test_a_second_entry_can_bring_the_key() -> None:
    _, sources = reconciler()
    sources.offer(Source.CONFIG, [BackendConfig(url="http://10.0.0.1")])
    backend = sources.add(BackendConfig(url="http://10.0.0.1", api_key="k")).backend
    assert backend.access.authorization == b"Bearer k"
    assert "Bearer" not in repr(backend.access)
