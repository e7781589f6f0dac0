"""A gateway for the tests of HTTP's edges, on each of the two parsers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import RawClient
from tests.process.requests import MAX_BODY


@pytest.fixture(scope="module", params=["httptools", "h11"])
def gw(
    request: pytest.FixtureRequest, shared_backend: FakeBackend, module_gateway: StartGateway
) -> GatewayProcess:
    # Errors are a subject of these tests: they must not eject the only backend.
    return module_gateway(
        [shared_backend],
        server={"max_body": MAX_BODY, "body_timeout": 0.4, "parser": request.param},
        health={"unhealthy_after": 1000, "interval": 60.0},
        breaker={"failures": 1000},
    )


@pytest.fixture
def client(gw: GatewayProcess) -> Iterator[RawClient]:
    with gw.client() as connected:
        yield connected
