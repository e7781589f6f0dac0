"""Fake backends and real gateway processes for the tests that need them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings

from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess

# A busy machine must fail no test that is about something else.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    # Hundreds of gateways start. Where Python is told to leave no bytecode beside the source, each
    # would compile all of its modules again, which takes as long as all else that a start does.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        cache = os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="bytecode-")
        config.add_cleanup(partial(shutil.rmtree, cache, ignore_errors=True))


class StartBackend(Protocol):
    def __call__(self, *models: str, **options: Any) -> FakeBackend: ...


class Served(Protocol):
    """What a gateway can be put in front of."""

    url: str


class StartGateway(Protocol):
    def __call__(
        self,
        backends: Sequence[Served],
        *,
        ready: bool = True,
        environment: Mapping[str, str] | None = None,
        entry: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> GatewayProcess: ...


@pytest.fixture
def start_backend() -> Iterator[StartBackend]:
    with ExitStack() as stack:

        def start(*models: str, **options: Any) -> FakeBackend:
            return stack.enter_context(FakeBackend(*models, **options))

        yield start


@pytest.fixture(scope="module")
def shared_backend() -> Iterator[FakeBackend]:
    """One for a gateway that a module's tests share."""
    with FakeBackend() as running:
        yield running


@pytest.fixture
def backend(shared_backend: FakeBackend) -> FakeBackend:
    """The same, as if it were new."""
    shared_backend.reset()
    return shared_backend


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[StartGateway]:
    """Starts a gateway in front of the given backends; keyword arguments are config sections,
    but for `entry`: what is said of each backend besides its URL."""
    yield from _starter(tmp_path)


@pytest.fixture(scope="module")
def module_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartGateway]:
    """The same, for a gateway that a module's tests share."""
    yield from _starter(tmp_path_factory.mktemp("gateway"))


def _starter(directory: Path) -> Iterator[StartGateway]:
    with ExitStack() as stack:

        def start(
            backends: Sequence[Served],
            *,
            ready: bool = True,
            environment: Mapping[str, str] | None = None,
            entry: Mapping[str, Any] | None = None,
            **settings: Any,
        ) -> GatewayProcess:
            entries = [{"url": backend.url, **(entry or {})} for backend in backends]
            tree = {"backends": entries, **settings}
            process = GatewayProcess(tree, directory, ready=ready, environment=environment)
            return stack.enter_context(process)

        yield start
