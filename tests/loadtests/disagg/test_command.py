from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadtests.disagg.__main__ import main

SHORT = ["--seconds", "5", "--gbps", "100", "--tpot", "100", "--ratio", "3"]


def test_shares_at_a_load_of_the_ways_that_are_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ways = ["--way", "always-decode-first", "ours"]
    assert main([*SHORT, "--at", "1.5", "--begin", "0", "100", *ways]) == 0
    text = capsys.readouterr().out
    assert "| chunk | within the SLO | remote |" in text
    shares = re.findall(r"^\| ([a-z, ]+) \| 3:5 \| 512 \| \d+\.\d% \| (\d+)%", text, re.MULTILINE)
    assert [way for way, _ in shares] == ["always, decode engine first", "ours"]
    assert shares[0][1] == "100"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--at", "0"], "--at 0: expected a number above 0"),
        (["--at", "nan"], "--at nan: expected a number above 0"),
        (["--seconds", "-1"], "--seconds -1: expected a number above 0"),
        (["--begin", "0", "9000"], "--begin 9000: expected from 0 to 900, the seconds of gen:chat"),
    ],
)
def test_nonsense_is_named(wrong: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, *wrong]) == 2
    assert says in capsys.readouterr().err


def test_the_page_names_ways_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[3] / "docs" / "disaggregation-replay.md"
    shown = re.findall(r"--way ((?:[a-z0-9-]+ ?)+)", page.read_text(encoding="utf-8"))
    assert shown
    for ways in shown:
        assert main(["--at", "0", "--way", *ways.split()]) == 2
