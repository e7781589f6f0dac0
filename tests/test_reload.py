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
from gateway.changes import WHOLE
from gateway.config import (
    BackendConfig,
    ConfigError,
    Discovery,
    FileSource,
    Section,
    Settings,
)
from gateway.control import GatewayControl
from gateway.reload import NEEDS_RESTART, SECTIONS, Reloader

BEFORE = Settings()


def options(section: type[Section], above: str = "") -> set[str]:
    found: set[str] = set()
    for name in section.__struct_fields__:
        default = getattr(section(), name)
        if isinstance(default, Section) and name not in WHOLE:
            found |= options(type(default), f"{above}{name}.")
        else:
            found.add(above + name)
    return found


def test_every_section_can_be_reloaded() -> None:
    assert set(Settings.__struct_fields__) - NEEDS_RESTART == SECTIONS.keys()


def test_what_needs_a_restart_are_options() -> None:
    assert options(Settings) >= NEEDS_RESTART


A, B = (BackendConfig(url=f"http://{name}:1") for name in "ab")


def test_the_backends_of_the_file_are_offered_again(tmp_path: Path) -> None:
    """What becomes of a list is the reconciler's business."""
    gateway = Gateway(Settings(backends=[A]))
    after = Settings(backends=[A, B])
    reloader = Reloader(gateway, tmp_path / "none", lambda: after, Gateway)
    assert asyncio.run(reloader.reload()).changed == ["backends"]
    assert [backend.config.url for backend in gateway.fleet] == [A.url, B.url]


@pytest.mark.parametrize("elsewhere", [True, False])
def test_no_backends_at_all_are_a_mistake(tmp_path: Path, elsewhere: bool) -> None:
    gateway = Gateway(Settings(backends=[A]))
    listed = Discovery(file=[FileSource(path="backends.yaml")]) if elsewhere else Discovery()
    after = Settings(discovery=listed)
    reloader = Reloader(gateway, tmp_path / "none", lambda: after, Gateway)
    with nullcontext() if elsewhere else pytest.raises(ConfigError, match="is empty"):
        asyncio.run(reloader.reload())
    assert len(list(gateway.fleet)) == (not elsewhere)


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
