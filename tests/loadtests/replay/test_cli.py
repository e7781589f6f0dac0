from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli import main


def test_a_replay_prints_a_table_and_writes_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    options = "--engines 2 --policy prefix_affinity,round_robin+plain --load 0.5,1 --seeds 2"
    code = main(["replay", "gen:chat?rate=1&seconds=120", *options.split(), "--json", str(file)])
    assert code == 0
    printed = capsys.readouterr().out
    assert "open loop, load x0.5" in printed
    assert "round_robin+plain" in printed
    found = json.loads(file.read_text())
    assert len(found["rows"]) == 4
    assert len(found["trace"]["sha256"]) == 2, "each seed has a trace of its own"
    assert found["engines"]["speeds"] == [1, 1]
    assert found["engines"]["profile"]["max_running_tokens"] == 400_000


def test_engines_can_be_unequal_and_become_slow(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    options = "--policy round_robin+plain --speed 1,0.5 --slow-at 0:60:3 --kv-tokens 500000"
    assert (
        main(["replay", "gen:chat?rate=1&seconds=60", *options.split(), "--json", str(file)]) == 0
    )
    engines = json.loads(file.read_text())["engines"]
    assert engines["speeds"] == [1, 0.5]
    assert engines["slow_downs"] == [{"engine": 0, "seconds": 60, "factor": 3}]
    assert engines["profile"]["kv_tokens"] == 500_000


def test_the_gateways_settings_are_those_of_its_config(tmp_path: Path) -> None:
    config, file = tmp_path / "config.yaml", tmp_path / "out.json"
    config.write_text(
        "scheduling: {gate: 0.125}\npolicy: {name: prefix_affinity, params: {eta: 2}}"
    )
    options = ["--policy", "prefix_affinity", "--config", str(config), "--json", str(file)]
    assert main(["replay", "gen:chat?rate=1&seconds=60", *options]) == 0
    used = json.loads(file.read_text())["policies"]["prefix_affinity"]
    assert used["scheduling"]["gate"] == 0.125
    assert used["params"]["eta"] == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("nowhere.jsonl", "nowhere.jsonl"),
        ("gen:chat --policy nothing", "nothing"),
        ("gen:chat --engines 3 --speed 1,1", "--speed: 2 values for 3 engines"),
        ("gen:chat --slow-at 8:1:1", "engines are 0 to 7"),
        ("gen:chat --slow-at 1:1", "expected ENGINE:SECONDS:FACTOR"),
        ("gen:chat --kv-tokens 10", "does not hold one sequence"),
    ],
)
def test_what_is_wrong_is_said(
    options: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *options.split()]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("options", ["--load 0", "--load x", "--seeds 0", "--slo-tpot -1"])
def test_options_have_bounds(options: str) -> None:
    with pytest.raises(SystemExit):
        main(["replay", "gen:chat", *options.split()])
