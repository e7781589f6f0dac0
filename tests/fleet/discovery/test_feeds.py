from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.config import ConfigError, Discovery, convert
from gateway.fleet.backend import Source
from gateway.fleet.discovery.dns import DnsFeed
from tests.fleet.discovery.following import Following
from tests.fleet.discovery.name_server import FakeNameServer
from tests.fleet.discovery.test_file import text


def file(path: Path, **options: Any) -> dict[str, Any]:
    return {"path": str(path), "interval": 0.05, **options}


def settings(*files: dict[str, Any], linger: float = 60.0) -> Discovery:
    return convert({"file": list(files), "linger": linger}, Discovery, "test")


def test_several_sources_name_one_fleet(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two = tmp_path / "one", tmp_path / "two"
        one.write_text(text("a", "b"))
        two.write_text(text("b", "10.0.0.1"))
        async with FakeNameServer() as server:
            server.records = {("x.test.", "A"): ["10.0.0.1", "10.0.0.2"]}
            dns = {"host": "x.test", "port": 1, "servers": [server.address]}
            async with Following(file=[file(one), file(two)], dns=[dns]) as here:
                await here.lists("a:1", "b:1", "10.0.0.1:1", "10.0.0.2:1")
                assert [(state.source, state.name) for state in here.feeds] == [
                    (Source.FILE, f"file:{one}"),
                    (Source.FILE, f"file:{two}"),
                    (Source.DNS, "dns:A:x.test:1"),
                ]
                one.write_text(text("a"))
                two.write_text(text("b"))
                await asyncio.sleep(0.4)
                assert here.listed == {"a:1", "b:1", "10.0.0.1:1", "10.0.0.2:1"}

    asyncio.run(scene())


def test_one_that_hangs_holds_up_no_other(tmp_path: Path) -> None:
    async def scene() -> None:
        path = tmp_path / "one"
        path.write_text(text("a"))
        async with FakeNameServer() as server:
            server.silent = True
            dns = {"host": "x.test", "port": 1, "servers": [server.address], "timeout": 60.0}
            async with Following(file=[file(path)], dns=[dns]) as here:
                await here.lists("a:1")
            assert server.asked

    asyncio.run(scene())


def test_other_sources_while_running(tmp_path: Path) -> None:
    async def scene() -> None:
        one, two, three = tmp_path / "one", tmp_path / "two", tmp_path / "three"
        one.write_text(text("a"))
        two.write_text(text("b"))
        three.write_text(text("c"))
        async with Following(file=[file(one), file(two)]) as here:
            await here.lists("a:1", "b:1")
            a, first = here.the("a:1"), next(iter(here.feeds))
            template = {"models": ["m"]}
            here.feeds.reconfigure(settings(file(one), file(three, backend=template), linger=5.0))
            await here.lists("a:1", "c:1")
            assert here.reconciler.linger == 5.0
            assert here.the("a:1") is a
            assert next(iter(here.feeds)) is first
            assert here.the("c:1").models == ("m",)
            here.feeds.reconfigure(settings(file(three)))
            await here.until(lambda: here.the("c:1").models == ())
            assert here.listed == {"c:1"}
            before = here.heard
            with pytest.raises(ConfigError):
                here.feeds.reconfigure(settings(file(one, backend={"models": []})))
            assert here.heard == before
            # what was let go of is read no more, what is followed is
            two.write_text(text("d"))
            three.write_text(text("e"))
            await here.lists("e:1")

    asyncio.run(scene())


def test_a_bug_in_a_source_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with FakeNameServer() as server:
            server.records = {("x.test.", "A"): ["10.0.0.1"]}
            dns = {"host": "x.test", "port": 1, "servers": [server.address], "interval": 0.05}
            async with Following(dns=[dns]) as here:
                await here.lists("10.0.0.1:1")
                with monkeypatch.context() as broken:
                    broken.delattr(DnsFeed, "_note")
                    await here.fails("inside the gateway: AttributeError")
                server.records[("x.test.", "A")] = ["10.0.0.2"]
                await here.until(lambda: here.state.cause == "")
                assert "Traceback" in caplog.text

    asyncio.run(scene())


def test_failures_are_logged_once_and_tried_again_later_and_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        path = tmp_path / "none"
        async with Following(file=[file(path, interval=60.0)]) as here:
            started = time.monotonic()
            await here.until(lambda: here.state.failures >= 3)
            assert time.monotonic() - started > 0.25 + 0.5
        assert here.state.read_at is None
        path.write_text(text("a"))
        assert caplog.text.count("cannot be read: No such file") == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())


def test_two_of_the_same_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"discovery|named more than once: file:x"):
        settings({"path": "x"}, {"path": "x", "interval": 1.0})
