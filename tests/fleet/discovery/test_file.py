from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.fleet.discovery import file as file_module
from gateway.types import EngineKind, Role
from tests.fleet.discovery.following import Following

INTERVAL = 0.05
Write = Callable[[Path, str], None]


def text(*hosts: str, **fields: Any) -> str:
    return json.dumps({"backends": [{"url": f"http://{host}:1", **fields} for host in hosts]})


def following(path: Path, **options: Any) -> Following:
    return Following(file=[{"path": str(path), "interval": INTERVAL, **options}])


def in_place(path: Path, content: str) -> None:
    path.write_text(content)


def renamed_over(path: Path, content: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(content)
    new.replace(path)


def swapped(path: Path, content: str) -> None:
    """As a kubelet updates a ConfigMap: the file is a link through a link to a directory."""
    number = len(list(path.parent.iterdir()))
    directory = path.parent / f"..{number}"
    directory.mkdir()
    (directory / path.name).write_text(content)
    link = path.parent / "..data_tmp"
    link.symlink_to(directory.name)
    link.replace(path.parent / "..data")
    if not path.is_symlink():
        path.symlink_to(Path("..data") / path.name)


@pytest.mark.parametrize("write", [in_place, renamed_over, swapped])
def test_what_is_written_is_taken_in(tmp_path: Path, write: Write) -> None:
    async def scene() -> None:
        path = tmp_path / "backends.yaml"
        write(path, text("a", "b"))
        async with following(path) as here:
            await here.lists("a:1", "b:1")
            a = here.the("a:1")
            write(path, text("a", "c"))
            await here.lists("a:1", "c:1")
            assert here.the("a:1") is a
            write(path, text("a"))
            await here.lists("a:1")
            assert here.state.failures == 0

    asyncio.run(scene())


def test_a_change_of_which_no_trace_is_left_in_times_and_sizes(tmp_path: Path) -> None:
    """A lost event: nothing but the text tells that the file is another."""

    async def scene() -> None:
        path = tmp_path / "backends.yaml"
        path.write_text(text("a"))
        times = path.stat()
        async with following(path) as here:
            await here.lists("a:1")
            path.write_text(text("b"))
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            await here.lists("b:1")

    asyncio.run(scene())


def test_entries_are_completed_from_the_template(tmp_path: Path) -> None:
    async def scene() -> None:
        path = tmp_path / "backends.yaml"
        path.write_text(
            "backends:\n- url: http://a:1\n- url: http://b:1\n  role: prefill\n  kind: null\n"
        )
        async with following(path, backend={"kind": "sglang", "role": "decode"}) as here:
            await here.lists("a:1", "b:1")
            assert (here.the("a:1").kind, here.the("a:1").role) == (EngineKind.SGLANG, Role.DECODE)
            assert (here.the("b:1").kind, here.the("b:1").role) == (EngineKind.SGLANG, Role.PREFILL)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("", "is empty"),
        (text("c", "d")[:-20], "not valid YAML"),
        ("backends: [{url: http://c:1, wieght: 2}]", "unknown field `wieght`"),
        ("backends: [{url: 'http://c:1'}, {url: 'c:1'}]", "backends[1]: backend url 'c:1'"),
        ("backends: [{url: 'http://c:1', models: []}]", "backends[0]: backend models"),
        ("backends: [{url: 'http://u:secret@c:1'}]", "'***@c:1'"),
        ("[1]", "array"),
        ("\x00", "not valid YAML"),
        (b"\xff\xfe", "not valid YAML"),
        ("x" * 10_000, "larger than"),
    ],
    ids=lambda value: None if isinstance(value, str) and len(value) < 60 else "text",
)
def test_a_file_that_is_wrong_keeps_the_last_list(
    tmp_path: Path, content: str | bytes, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "MAX_BYTES", 5_000)

    async def scene() -> None:
        path = tmp_path / "backends.yaml"
        path.write_text(text("a", "b"))
        async with following(path) as here:
            await here.lists("a:1", "b:1")
            heard = here.heard
            path.write_bytes(content.encode() if isinstance(content, str) else content)
            await here.fails(cause)
            assert "secret" not in here.state.cause
            assert here.heard == heard
            path.write_text(text("b"))
            await here.lists("b:1")
            assert here.state.cause == ""

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["gone", "directory", "pipe"])
def test_no_file_keeps_the_last_list(tmp_path: Path, how: str) -> None:
    async def scene() -> None:
        path = tmp_path / "backends.yaml"
        path.write_text(text("a"))
        async with following(path) as here:
            await here.lists("a:1")
            path.unlink()
            if how == "directory":
                path.mkdir()
            elif how == "pipe":
                os.mkfifo(path)
            await here.fails("cannot be read" if how != "pipe" else "is not a file")
            assert here.listed == {"a:1"}
            path.rmdir() if how == "directory" else path.unlink(missing_ok=True)
            path.write_text(text("b"))
            await here.lists("b:1")

    asyncio.run(scene())


def test_a_list_that_says_none_is_believed(tmp_path: Path) -> None:
    async def scene() -> None:
        path = tmp_path / "backends.yaml"
        path.write_text(text("a"))
        async with following(path) as here:
            await here.lists("a:1")
            path.write_text("backends: []")
            await here.lists()

    asyncio.run(scene())


def test_half_a_list_that_could_be_a_whole_one_is_not_believed(tmp_path: Path) -> None:
    async def scene() -> None:
        path = tmp_path / "backends.yaml"
        whole = "backends:\n" + "".join(f"- url: http://h{n}:1\n" for n in range(20))
        everything = tuple(f"h{n}:1" for n in range(20))
        path.write_text(whole)
        async with following(path) as here:
            await here.lists(*everything)
            heard = here.heard
            # A writer that takes its time, line by line.
            with path.open("w") as file:
                for line in whole.splitlines(keepends=True):
                    file.write(line)
                    file.flush()
                    await asyncio.sleep(0.03)
            await here.is_read()
            assert here.heard == heard
            assert here.listed == set(everything)

    asyncio.run(scene())


def test_one_that_flaps_stays_what_it_was(tmp_path: Path) -> None:
    async def scene() -> None:
        path = tmp_path / "backends.yaml"
        path.write_text(text("a", "b"))
        async with following(path) as here:
            await here.lists("a:1", "b:1")
            a = here.the("a:1")
            for _ in range(3):
                renamed_over(path, text("b"))
                await here.lists("b:1")
                renamed_over(path, text("a", "b"))
                await here.lists("a:1", "b:1")
            assert here.the("a:1") is a
            assert here.removed == []

    asyncio.run(scene())


def test_a_renamed_host_is_another_backend(tmp_path: Path) -> None:
    """Whatever is at both: only the address tells what an engine is."""

    async def scene() -> None:
        path = tmp_path / "backends.yaml"
        path.write_text(text("old", role="decode"))
        async with following(path) as here:
            await here.lists("old:1")
            path.write_text(text("new", role="decode"))
            await here.lists("new:1")
            assert here.the("old:1").unlisted
            # the same address in another spelling is no rename
            new = here.the("new:1")
            path.write_text(json.dumps({"backends": [{"url": "HTTP://NEW:1/"}]}))
            await here.until(lambda: new.role is Role.UNIFIED)
            assert here.the("new:1") is new

    asyncio.run(scene())
