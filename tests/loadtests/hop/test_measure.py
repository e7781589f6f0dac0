"""The compiled tools and the harness around them, with a proxy that is plain TCP forwarding."""

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest

from loadtests.hop import measure as harness
from loadtests.hop.__main__ import main, table
from loadtests.hop.measure import SCENARIOS, Load, Reading, measure
from loadtests.process import ProcessError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="needs Linux and gcc"
)

FORWARD = """
import asyncio, sys

port, engine = int(sys.argv[1]), int(sys.argv[2].rsplit(":", 1)[1])
spoil = sys.argv[3:] == ["spoil"]

async def pump(reader, writer, spoil):
    while data := await reader.read(65536):
        writer.write(data.replace(b"[DONE]", b"[GONE]") if spoil else data)
    writer.close()

async def handle(reader, writer):
    back, forth = await asyncio.open_connection("127.0.0.1", engine)
    await asyncio.gather(pump(reader, forth, False), pump(back, writer, spoil))

async def serve():
    async with await asyncio.start_server(handle, "127.0.0.1", port) as server:
        await server.serve_forever()

asyncio.run(serve())
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "_WARM_UP_MS", 50)
    for name, scenario in SCENARIOS.items():
        short = dataclasses.replace(
            scenario, milliseconds=200, connections=4, chunks=min(scenario.chunks, 5)
        )
        monkeypatch.setitem(SCENARIOS, name, short)


@pytest.fixture
def proxy(tmp_path: Path) -> str:
    script = tmp_path / "forward.py"
    script.write_text(FORWARD)
    return f"{sys.executable} {script} {{port}} {{b1}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "build").mkdir()
    return tmp_path / "build"


def test_every_scenario_is_measured_in_every_repetition(proxy: str, folder: Path) -> None:
    readings = measure(folder, {"a": proxy, "b": proxy}, ["small", "stream64"], 2, 0)
    order = [(reading.proxy, reading.scenario) for reading in readings]
    turns = ["a", "b", "b", "a"]
    assert order == [(name, scenario) for name in turns for scenario in ("small", "stream64")]
    assert all(reading.load.bad == 0 for reading in readings)
    assert all(reading.load.done > 0 for reading in readings)
    assert all(0 < reading.load.first_p50 <= reading.load.lat_p50 for reading in readings)


def test_warm_bodies_go_through_the_proxy(
    proxy: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, Load]] = []
    send = harness.Bench._send

    def spy(self: harness.Bench, port: int, bodies: Path, *rest: int, **named: int) -> Load:
        load = send(self, port, bodies, *rest, **named)
        sent.append((bodies.name, load))
        return load

    monkeypatch.setattr(harness.Bench, "_send", spy)
    measure(folder, {"a": proxy}, ["small"], 1, 40)
    [warm] = [load for name, load in sent if name == "warm.jsonl"]
    assert (warm.done, warm.bad) == (40, 0)


def test_a_changed_body_is_seen(proxy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--reps", "1", "--scenarios", "stream64", "--proxy", f"x={proxy} spoil"]) == 1
    assert "BAD" in capsys.readouterr().out


def test_a_proxy_that_does_not_start_is_told(folder: Path) -> None:
    command = f"{sys.executable} -c 'import sys; sys.exit(3)' {{port}}"
    with pytest.raises(ProcessError, match="broken ended with code 3"):
        measure(folder, {"broken": command}, ["small"], 1, 0)


def test_unknown_scenarios_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--scenarios", "small,huge"])
    assert "no scenario huge" in capsys.readouterr().err


def test_table_shows_medians_and_minima() -> None:
    load = Load(
        done=10,
        errors=0,
        not_200=0,
        mismatches=0,
        stuck=0,
        seconds=1.0,
        lat_p50=1.0,
        lat_p99=4.0,
        first_p50=1.0,
        first_p99=2.0,
    )
    costs = [60.0, 50.0, 90.0]
    readings = [Reading("own", name, cost, 80.0, load) for cost in costs for name in SCENARIOS]
    row = table(readings).splitlines()[-1]
    assert row.startswith("own")
    assert row.count("60.0/50.0") == len(SCENARIOS)
    assert "p99 4.0" in row  # of whole answers
    assert "p99 2.0" in row  # of a stream's first byte
