from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from pathlib import Path

import pytest

from gateway.config import ConfigError
from loadtests.suite.case import Case, Place
from loadtests.suite.plan import EQUAL, arm, fleet_of
from loadtests.suite.store import Store
from loadtests.suite.version import Version
from loadtests.suite.work import carry_out
from tests.loadtests.suite.made import VERSION, workload


def case(
    policy: str = "lmetric", seed: int = 1, load: float = 1.0, version: Version = VERSION
) -> Case:
    made = workload()
    trace = made.traces[seed - 1]
    place = Place(made.name, trace, seed, EQUAL, fleet_of(EQUAL, trace), version)
    return place.run(arm(policy), load)


def test_what_is_stored_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "results" / "runs.jsonl"
    carry_out([case(), case(seed=2)], Store(path), 1)
    before = path.read_bytes()
    said: list[str] = []
    again = Store(path)
    carry_out([case(), case(seed=2)], again, 1, said.append)
    assert path.read_bytes() == before
    assert said == []
    carry_out([case(), case(seed=2), case(load=2.0)], again, 1, said.append)
    assert path.read_bytes().startswith(before)
    assert len(path.read_bytes().splitlines()) == 3
    assert said[-1].startswith("1 of 1")


@pytest.mark.parametrize(
    "other",
    [
        case("minimum_ttft"),
        case("lmetric?count_pending=false"),
        case("lmetric?knows.rates=true"),
        case(seed=2),
        case(load=1.1),
        case(version=Version("1", "other")),
    ],
    ids=["policy", "parameter", "knowledge", "seed", "load", "code"],
)
def test_each_thing_that_decides_a_result_is_in_its_key(other: Case) -> None:
    assert other.key != case().key


def test_a_line_that_was_cut_off_is_left_out_and_others_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    carry_out([case(), case(seed=2)], Store(path), 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    store = Store(path)
    assert store.get(case()) is not None
    assert store.get(case(seed=2)) is None
    carry_out([case(seed=2)], store, 1)
    assert len(list(Store(path))) == 2


def test_figures_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    endless = replace(case(), work=lambda: {"load": inf, "queue": nan, "slo": 0.5})
    carry_out([endless], Store(path), 1)
    stored = Store(path).get(endless)
    assert stored is not None
    assert stored.figures == {"slo": 0.5}


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_text("hello\nworld\n")
    with pytest.raises(ConfigError, match="line 1"):
        Store(path)
    assert path.read_text() == "hello\nworld\n"


def test_processes_give_what_one_gives(tmp_path: Path) -> None:
    cases = [case(), case(seed=2), case("minimum_ttft")]
    one, two = Store(tmp_path / "one"), Store(tmp_path / "two")
    carry_out(cases, one, 1)
    carry_out(cases, two, 2)
    for each in cases:
        first, second = one.get(each), two.get(each)
        assert first is not None
        assert second is not None
        assert first.figures == pytest.approx(second.figures)
