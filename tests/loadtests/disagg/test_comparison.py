from __future__ import annotations

import pytest

from loadtests.disagg import comparison
from loadtests.disagg.comparison import Contest, Round, fixed, never
from loadtests.disagg.ways import Way, Wire
from loadtests.replay import source

LIMITS = {512: 1.5, 1024: 1.2, 256: 1.9, 2048: 1.0}
"""Load that each chunk takes."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    plays: list[tuple[int, float]] = []

    def holds(scenario: object, arm: object, slo: object, front: object) -> bool:
        load, chunk = scenario.load, scenario.fleet.chunk
        plays.append((chunk, load))
        return bool(load <= LIMITS[chunk])

    monkeypatch.setattr(comparison, "holds", holds)
    return plays


def test_who_is_no_better_than_the_best_is_asked_once(asked: list[tuple[int, float]]) -> None:
    trace = source.find("gen:chat?rate=1&seconds=10")(1)
    rows = Contest(trace, Wire(), 0.1, never(), exact=False)()
    found = {row.way.chunk: row for row in rows}
    for chunk, at_most in ((512, False), (1024, True), (256, False), (2048, True)):
        assert found[chunk].at_most is at_most
        assert (sum(asked_of == chunk for asked_of, _ in asked) == 1) is at_most
    assert found[256].rate == pytest.approx(1.9 * trace.rate, rel=0.011)
    assert found[1024].rate == found[512].rate


def test_all_are_searched_where_that_is_wanted(asked: list[tuple[int, float]]) -> None:
    trace = source.find("gen:chat?rate=1&seconds=10")(1)
    for row in Contest(trace, Wire(), 0.1, never(), exact=True)():
        assert not row.at_most
        assert row.rate == pytest.approx(LIMITS[row.way.chunk] * trace.rate, rel=0.011)


def test_every_rule_is_held_against_ours_at_each_ratio() -> None:
    ways = fixed(4)
    assert all(way.prefill == 4 for way in ways)
    assert Way(4, comparison.STATIC_CHUNK, 0, joint=False) in ways
    for least in comparison.THRESHOLDS:
        for joint in (True, False):
            assert Way(4, comparison.STATIC_CHUNK, least, joint) in ways
    assert len({way.name for way in ways}) == len(ways)


def test_each_way_has_an_option_of_its_own_whatever_its_chunk_and_ratio() -> None:
    assert comparison.options() == [
        "never",
        "from-16384-placed",
        "from-8192-placed",
        "from-2048-placed",
        "from-2048-decode-first",
        "from-8192-decode-first",
        "from-16384-decode-first",
        "always-decode-first",
        "ours",
    ]
    assert {way.option for way in fixed(6)} < set(comparison.options())


def test_a_comparison_can_be_of_some_ways_only(asked: list[tuple[int, float]]) -> None:
    trace = source.find("gen:chat?rate=1&seconds=10")(1)
    rows = comparison.compare([trace], [Wire()], [0.1], [2, 3], only=["from-8192-placed", "ours"])
    assert [(row.way.prefill, row.way.option) for row in rows] == [
        (2, "from-8192-placed"),
        (2, "ours"),
        (3, "from-8192-placed"),
        (3, "ours"),
    ]


def test_at_one_load_a_way_has_the_share_of_requests_within_the_slo() -> None:
    trace = source.find("gen:chat?rate=4&seconds=20")(1)
    ways = [Way(3, 512, 0, joint=False)]
    (easy,) = Round(trace, Wire(), 0.1, ways, 0.5)()
    (hard,) = Round(trace, Wire(), 0.001, ways, 0.5)()
    assert easy.share is not None
    assert hard.share is not None
    assert easy.share > 0.8 > 0.2 > hard.share
    assert easy.remote == 1.0
    assert easy.moved > 0
    assert easy.rate == pytest.approx(0.5 * trace.rate)
