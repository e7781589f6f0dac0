from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from loadtests.replay.player import Mode
from loadtests.replicas import report, virtual
from loadtests.replicas.sharing import NOTHING, SHARED, Sharing
from loadtests.replicas.virtual import Row, Workload
from loadtests.scenarios.stage import fleet

SMALL = Workload("small", "gen:chat?rate=5&seconds=240&opening_tokens=600&think=20", Mode.CLOSED)


def test_gateways_that_share_are_as_good_as_one_and_those_that_do_not_are_not() -> None:
    rows = virtual.run(SMALL, (1, 4), (SHARED, NOTHING), engines=fleet(4))
    one, shared, alone = (row.figures for row in rows)
    assert shared["follow_ups"] == pytest.approx(one["follow_ups"], rel=0.01)
    assert shared["in_flight"][0] < 1.05 * one["in_flight"][0]
    assert alone["follow_ups"][0] < 0.85 * one["follow_ups"][0]
    assert shared["predicted_mae"][0] < 0.5 * alone["predicted_mae"][0]


def row(replicas: int, sharing: Sharing, **figures: float | Sequence[float]) -> Row:
    every: Mapping[str, float | Sequence[float]] = {
        "follow_ups": 0.9,
        "in_flight": 1.2,
        "imbalance": 1.1,
        "ttft_p50": 0.2,
        "ttft_p99": 2.0,
        "all_requests": 100,
        "records": 400,
        "bytes": 50_000,
    }
    return Row(
        "made",
        replicas,
        sharing,
        {
            name: [value] * 3 if isinstance(value, float | int) else value
            for name, value in {**every, **figures}.items()
        },
    )


ONE = row(1, SHARED)
CUT = row(8, NOTHING, follow_ups=0.6)


def test_nothing_is_missed_where_sharing_helps_and_costs_no_balance() -> None:
    assert report.missed([ONE, row(8, SHARED, follow_ups=0.895), CUT]) == []


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (row(8, SHARED, follow_ups=0.85), "follow-up hits"),
        (row(8, SHARED, in_flight=1.3), "in flight"),
        (row(8, NOTHING), "as many"),
    ],
)
def test_what_is_missed_is_named(other: Row, word: str) -> None:
    (line,) = report.missed([ONE, other])
    assert word in line
    assert "8 gateways" in line


def test_what_chance_could_do_is_neither_met_nor_missed() -> None:
    unsure = row(8, SHARED, in_flight=(1.15, 1.2, 1.3))
    assert report.missed([ONE, unsure]) == []
    assert report.table([ONE, unsure]).count("within noise") == 1
    assert report.table([ONE, row(8, SHARED)]).count("within noise") == 0


def test_the_table_holds_every_arm_against_one_gateway() -> None:
    lines = report.table([ONE, CUT]).splitlines()
    assert lines[0] == "**made**, seeds 1 to 3"
    assert lines[-1].startswith("| 8 | nothing shared | 0.600 | 0.667 ± 0.000 |")
