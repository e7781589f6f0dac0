"""The tables of what real processes did, and what is asked of them."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest

from loadtests.replicas import faults, live, propagation
from loadtests.replicas.idle import Idle
from loadtests.replicas.propagation import Pair, Report
from loadtests.replicas.rejoin import Rejoin
from loadtests.replicas.restart import Restart
from loadtests.replicas.way import Cost, Way
from loadtests.sample import Sample
from loadtests.workload import Kind

MIB = 1 << 20


def sample(session: str, turn: int, prompt: int, cached: int) -> Sample:
    return Sample(
        session, turn, Kind.CHAT, 0.0, 1.0, 0.1, 0.01, prompt, cached, 10, "a", "prefix", None
    )


def test_a_follow_up_can_find_the_prompt_of_the_turn_before_it() -> None:
    turns = [
        sample("one", 0, 100, 90),
        sample("one", 1, 200, 50),
        sample("one", 2, 300, 260),
        sample("other", 0, 500, 0),
    ]
    assert live.follow_ups(turns) == (50 + 200) / (100 + 200)


ONE = live.Row(1, False, 100, 0.9, 1.0, 0.1, 0.5, 0.001)


@pytest.mark.parametrize(
    ("shared", "hits", "count"), [(True, 0.9, 0), (True, 0.8, 1), (False, 0.7, 0), (False, 0.9, 1)]
)
def test_live_gateways_are_held_against_one(*, shared: bool, hits: float, count: int) -> None:
    row = replace(ONE, replicas=2, shared=shared, follow_ups=hits)
    assert len(live.missed([ONE, row])) == count
    assert live.table([ONE, row]).count("\n") == 3


CALM = faults.Row(
    "frozen",
    1000,
    (),
    (0.01,) * faults.REPEATS,
    (0.0105,) * faults.REPEATS,
    (0.1, 0.3),
)


def test_a_fault_that_nobody_notices_misses_nothing() -> None:
    assert faults.missed([CALM]) == []
    assert "| +0.5 ms | +0.5 to +0.5 ms | met | 0.30 s |" in faults.table([CALM])


@pytest.mark.parametrize(
    ("row", "word"),
    [
        (replace(CALM, failures=("reset", "reset")), "2 requests failed: reset"),
        (replace(CALM, amid=(0.012,) * faults.REPEATS), "at P99"),
        (replace(CALM, shared=(0.1, 6.0)), "not shared again"),
        (replace(CALM, shared=(None,)), "not shared again"),
    ],
)
def test_what_a_fault_did_is_named(row: faults.Row, word: str) -> None:
    (line,) = faults.missed([row])
    assert line.startswith("frozen: ")
    assert word in line


def test_what_the_machine_could_have_done_is_not_laid_on_the_fault() -> None:
    unsure = replace(CALM, amid=(0.009, *CALM.amid[2:], 0.02))
    assert faults.missed([unsure]) == []
    assert "within noise" in faults.table([unsure])
    assert "too few" in faults.table([replace(CALM, alone=(0.01,), amid=(0.0105,))])


BEFORE_AND_AFTER = Rejoin(0.99, 0.98, 100, 0)
GOOD = Report(
    Pair(Way(1000.0, (0.01, 0.02), 0), Way(1000.0, (), 2)),
    Pair(Cost(2e-4, 5e-5, 1e-5), Cost(1e-4, 0.0, nan)),
    Pair(Idle(0.01, 20.0, 0.001), Idle(0.005, 0.0, nan)),
    Restart(1_000_000, 100.0 * MIB, 50.0 * MIB, 2.0, 1.0),
    Pair(BEFORE_AND_AFTER, replace(BEFORE_AND_AFTER, first=0.7)),
    2.9,
)


def test_sharing_costs_the_difference_to_not_sharing() -> None:
    assert propagation.missed(GOOD) == []
    assert "| 100 µs, +100 µs, 50 µs, 10 µs |" in propagation.table(GOOD)


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (replace(GOOD, way=replace(GOOD.way, shared=Way(1000.0, (0.01,), 1))), "50 ms"),
        (replace(GOOD, way=replace(GOOD.way, shared=Way(1000.0, (), 0))), "50 ms"),
        (replace(GOOD, way=replace(GOOD.way, alone=GOOD.way.shared)), "without Redis hear"),
        (replace(GOOD, restart=replace(GOOD.restart, gateway=151.0 * MIB)), "150 MiB"),
        (replace(GOOD, restart=replace(GOOD.restart, redis=101.0 * MIB)), "100 MiB"),
        (replace(GOOD, restart=replace(GOOD.restart, ready=6.0)), "5 s"),
        (replace(GOOD, restart=replace(GOOD.restart, back=0.9)), "0.99"),
        (replace(GOOD, rejoin=Pair(GOOD.rejoin.alone, GOOD.rejoin.alone)), "0.97"),
        (replace(GOOD, rejoin=Pair(GOOD.rejoin.shared, GOOD.rejoin.shared)), "finds as much"),
        (
            replace(GOOD, rejoin=replace(GOOD.rejoin, shared=replace(BEFORE_AND_AFTER, failed=1))),
            "turns fail",
        ),
        (replace(GOOD, gone=None), "dead gateway"),
        (replace(GOOD, gone=4.0), "dead gateway"),
    ],
)
def test_what_sharing_does_not_reach_is_named(bad: Report, word: str) -> None:
    (line,) = propagation.missed(bad)
    assert word in line
