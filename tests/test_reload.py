"""What a reload changes, and what it leaves behind; tests/process has those under traffic."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import nullcontext
from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.config import (
    BackendConfig,
    ConfigError,
    Section,
    Settings,
)
from gateway.control import GatewayControl
from gateway.fleet.backend import BackendPatch, Source
from gateway.reload import NEEDS_RESTART, SECTIONS, Reloader, offer
from gateway.types import Role

BEFORE = Settings()


def options(section: type[Section], above: str = "") -> set[str]:
    found: set[str] = set()
    for name in section.__struct_fields__:
        default = getattr(section(), name)
        if isinstance(default, Section):
            found |= options(type(default), f"{above}{name}.")
        else:
            found.add(above + name)
    return found


def test_every_section_can_be_reloaded() -> None:
    assert set(Settings.__struct_fields__) == SECTIONS.keys() | {"backends"}


def test_what_needs_a_restart_are_options() -> None:
    assert options(Settings) >= NEEDS_RESTART


# backends

A, B, C = (BackendConfig(url=f"http://{name}:1") for name in "abc")


def listed(*entries: BackendConfig) -> dict[str, BackendConfig]:
    fleet = Gateway(Settings(backends=list(entries))).fleet
    return {backend.id: backend.config for backend in fleet}


def urls(gateway: Gateway) -> list[str]:
    return [backend.config.url for backend in gateway.fleet]


def id_of(entry: BackendConfig) -> str:
    [id] = listed(entry)
    return id


def test_the_fleet_follows_the_list() -> None:
    gateway = Gateway(Settings(backends=[A, B]))
    kept = gateway.fleet.get(id_of(B))
    offer(gateway, listed(A, B), listed(B, C))
    assert urls(gateway) == [B.url, C.url]
    assert gateway.fleet.get(id_of(B)) is kept


def test_the_same_address_in_another_spelling_is_the_same_backend() -> None:
    gateway = Gateway(Settings(backends=[A]))
    kept = gateway.fleet.get(id_of(A))
    offer(gateway, listed(A), listed(BackendConfig(url="HTTP://A:1/")))
    assert list(gateway.fleet) == [kept]


def test_of_a_backend_only_what_the_file_says_anew_changes() -> None:
    gateway = Gateway(Settings(backends=[A]))
    id = id_of(A)
    gateway.fleet.patch(id, BackendPatch(role=Role.DECODE, models=["patched"]))
    gateway.fleet.drain(id)
    offer(gateway, listed(A), listed(BackendConfig(url=A.url, capacity_tokens=5, models=["said"])))
    backend = gateway.fleet.get(id)
    assert (backend.role, backend.models, backend.capacity_tokens) == (Role.DECODE, ("said",), 5)
    assert backend.draining
    # Back to what is not said: detected again.
    offer(gateway, listed(backend.config), listed(A))
    assert gateway.fleet.get(id).config.models is None


def test_backends_of_the_admin_api_stay() -> None:
    gateway = Gateway(Settings(backends=[A]))
    gateway.fleet.add(B, Source.ADMIN)
    offer(gateway, listed(A, B), listed(A))
    assert urls(gateway) == [A.url, B.url]


def test_what_the_admin_api_removed_stays_away_until_its_entry_changes() -> None:
    gateway = Gateway(Settings(backends=[A, B]))
    gateway.fleet.remove(id_of(B))
    offer(gateway, listed(A, B), listed(A, B))
    assert urls(gateway) == [A.url]
    offer(gateway, listed(A, B), listed(A))
    assert urls(gateway) == [A.url]
    offer(gateway, listed(A), listed(A, B))
    assert urls(gateway) == [A.url, B.url]


def test_a_backend_that_comes_back_is_another_one() -> None:
    gateway = Gateway(Settings(backends=[A]))
    gateway.fleet.drain(id_of(A))
    offer(gateway, listed(A), {})
    offer(gateway, {}, listed(A))
    assert not gateway.fleet.get(id_of(A)).draining


def test_without_a_file_there_is_nothing_to_load() -> None:
    control = GatewayControl(Gateway(Settings()))
    with pytest.raises(ConfigError, match="no config file"):
        asyncio.run(control.reload())


@pytest.mark.parametrize("works", [True, False])
def test_what_was_tried_is_gone_afterwards(tmp_path: Path, works: bool) -> None:
    """Its parts refer to each other: without help they would wait for a full collection."""
    tried: list[weakref.ref[Gateway]] = []

    def attempt(settings: Settings) -> Gateway:
        made = Gateway(settings)
        tried.append(weakref.ref(made))
        if not works:
            raise ConfigError("no")
        return made

    async def reload() -> None:
        reloader = Reloader(Gateway(BEFORE), tmp_path / "none", lambda: BEFORE, attempt)
        with nullcontext() if works else pytest.raises(ConfigError):
            await reloader.reload()

    gc.disable()
    try:
        asyncio.run(reload())
        assert [each() for each in tried] == [None]
    finally:
        gc.enable()


def test_what_cannot_be_told_before_is_refused_in_full(tmp_path: Path) -> None:
    """Whatever goes wrong while the file is read, the gateway goes on as it was."""
    gateway = Gateway(BEFORE)

    def load() -> Settings:
        raise ZeroDivisionError

    async def reload() -> None:
        with pytest.raises(ZeroDivisionError):
            await Reloader(gateway, tmp_path / "none", load, Gateway).reload()

    asyncio.run(reload())
    assert gateway.settings is BEFORE
    assert gateway.metrics.config_reloads["refused"] == 1


def test_a_hangup_before_the_start_is_not_lost(tmp_path: Path) -> None:
    loaded = threading.Event()

    def load() -> Settings:
        loaded.set()
        return BEFORE

    async def start() -> None:
        reloader = Reloader(Gateway(BEFORE), tmp_path / "none", load, Gateway)
        reloader.ask()
        reloader.start()
        assert await asyncio.to_thread(loaded.wait, 10.0)
        await reloader.stop()

    asyncio.run(start())
