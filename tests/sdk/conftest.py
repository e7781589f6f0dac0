"""A backend and a gateway that the SDK tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess


@pytest.fixture(scope="module")
def shared_backend() -> Iterator[FakeBackend]:
    with FakeBackend("m", "lora") as running:
        yield running


@pytest.fixture(scope="module")
def gw(shared_backend: FakeBackend, module_gateway: StartGateway) -> GatewayProcess:
    # Errors are a subject of these tests: they must not eject the only backend.
    return module_gateway([shared_backend], breaker={"failures": 1000}, models={"small": ["m"]})
