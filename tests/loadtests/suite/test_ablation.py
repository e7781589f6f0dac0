from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.suite import ablation
from loadtests.suite.ablation_report import report
from loadtests.suite.ablations import ABLATIONS
from loadtests.suite.comparison import Comparison
from loadtests.suite.store import Store
from loadtests.suite.variants import Ablation, Variant, engines
from loadtests.suite.version import ROOT
from loadtests.suite.work import carry_out
from tests.loadtests.suite.made import VERSION, workload


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_variant_can_be_made(name: str, tmp_path: Path) -> None:
    cases = Comparison(ABLATIONS[name], [workload(1)], Store(tmp_path / "x"), VERSION).cases()
    assert len(cases) >= 2 * len(ABLATIONS[name].loads)


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_variants_of_a_group_have_labels_of_their_own(name: str) -> None:
    for group in ABLATIONS[name].groups:
        assert len({variant.label for variant in group}) == len(group)


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_page_has_a_place_for_each(name: str) -> None:
    page = (ROOT / "docs" / "ablations.md").read_text()
    assert page.count(f"<!-- begin {name} -->") == page.count(f"<!-- end {name} -->") == 1


def test_more_engines_get_more_load(tmp_path: Path) -> None:
    made = Ablation("?", [[engines(16)(Variant("ours"))]], loads=(0.5,))
    [case] = Comparison(made, [workload(1)], Store(tmp_path / "x"), VERSION).cases()
    assert len(case.fleet.speeds) == 16
    assert case.load == 1.0


def test_a_variant_is_held_against_the_first_of_its_group(tmp_path: Path) -> None:
    slow = Variant("all to one", "vllm_prefix_aware")
    made = Ablation("Is it good?", [[Variant("as it is"), slow]], loads=(20.0,))
    comparison = Comparison(made, [workload()], Store(tmp_path / "x"), VERSION)
    carry_out(comparison.cases(), comparison.store, 1)
    text = report("name", comparison)
    lines = [line for line in text.splitlines() if line.startswith(("| as it", "| all to"))]
    assert lines[0].endswith("|  |  |")
    assert "| -" in lines[1]
    assert text.startswith("### name\n\nIs it good?\n")


def test_the_command_runs_and_prints_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtests.suite.workload.GENERATED", {"a": "gen:chat?seconds=5"})
    page = tmp_path / "page.md"
    page.write_text("<!-- begin booking -->\n<!-- end booking -->\n")
    options = ["--seeds", "1", "--jobs", "1", "--workload", "a"]
    files = ["--results", str(tmp_path / "r"), "--page", str(page)]
    assert ablation.main(["booking", *options, *files]) == 0
    assert "| first token |" in capsys.readouterr().out
    assert "| first token |" in page.read_text()
    assert ablation.main(["booking", "--workload", "nothing", *files]) == 2
    assert "unknown workload nothing" in capsys.readouterr().err
