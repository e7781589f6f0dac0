from __future__ import annotations

import pytest

from loadtests.scenarios import __main__ as scenarios
from loadtests.scenarios.table import table


def test_figures_stand_under_their_names() -> None:
    text = table(
        "title", {"ours": {"hit": 0.5, "TTFT P95": 1.25}, "other": {"hit": 1, "TTFT P95": 2}}
    )
    assert [line.split() for line in text.splitlines()] == [
        ["title"],
        ["hit", "TTFT", "P95"],
        ["ours", "0.500", "1.250"],
        ["other", "1.000", "2.000"],
    ]


def test_a_scenario_is_printed_by_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scenarios", "cached_document"])
    assert scenarios.main() == 0
    assert "prefix_affinity" in capsys.readouterr().out


def test_an_unknown_name_is_refused_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["scenarios", "nothing"])
    with pytest.raises(SystemExit):
        scenarios.main()
    assert "hot_prefix" in capsys.readouterr().err
