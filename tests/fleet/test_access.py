from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterator

import pytest

from gateway.fleet.access import Access
from gateway.fleet.address import Address
from gateway.fleet.allow import AllowRule
from gateway.fleet.page import NoPage, Page, PageReader
from gateway.fleet.upstream import FailureKind, Upstream, UpstreamFailure
from tests.harness.fake_backend import FakeBackend

LOOPBACK4 = ipaddress.ip_network("127.0.0.0/8")
LOOPBACK6 = ipaddress.ip_network("::1/128")


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    with FakeBackend() as running:
        yield running


def dials(port: int, rule: AllowRule) -> None:
    async def main() -> None:
        upstream = Upstream("localhost", port, lambda: 0.0, Access(rule=rule))
        (await upstream.dial(5.0)).transport.abort()

    asyncio.run(main())


def page(port: int, access: Access) -> Page:
    async def main() -> Page:
        address = Address.parse(f"http://localhost:{port}")
        return await PageReader(address, 5.0, access).get("/v1/models")

    return asyncio.run(main())


def test_V02_neither_requests_nor_probes_go_where_a_name_may_not_lead(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = AllowRule([f"localhost:{backend.port}"])
    dials(backend.port, rule)
    assert page(backend.port, Access(rule=rule)).status == 200
    [probe] = backend.probes
    assert probe.header(b"host") == f"localhost:{backend.port}".encode()
    count = backend.connection_count
    # The name was allowed; what it leads to no longer is.
    monkeypatch.setattr("gateway.fleet.allow.FORBIDDEN", (LOOPBACK4, LOOPBACK6))
    with pytest.raises(UpstreamFailure) as failed:
        dials(backend.port, rule)
    assert failed.value.kind is FailureKind.CONNECT
    with pytest.raises(NoPage, match="allow_backends"):
        page(backend.port, Access(rule=rule))
    assert backend.connection_count == count


def test_probes_show_the_backends_key(backend: FakeBackend) -> None:
    page(backend.port, Access(authorization=b"Bearer its-own"))
    assert backend.probes[0].header(b"authorization") == b"Bearer its-own"
