from __future__ import annotations

from dataclasses import replace

import pytest

from loadtests.replicas import placing
from loadtests.replicas.placing import Row, agreement


@pytest.mark.parametrize(("engines", "per_engine"), placing.FLEETS)
def test_replicas_that_place_one_new_prefix_at_once_choose_alike(
    engines: int, per_engine: float
) -> None:
    alike, prompts = agreement(engines, per_engine)
    assert prompts > 500
    assert alike >= placing.GOAL
    assert agreement(engines, per_engine, lag=0.0)[0] >= 0.98
    assert agreement(engines, per_engine, shared=False)[0] <= 0.75


GOOD = Row(8, 2.0, 1000, 0.99, 0.96, 0.3)


def test_what_is_missed_is_named() -> None:
    assert placing.missed([GOOD]) == []
    assert placing.missed([replace(GOOD, lagging=0.9)]) == [
        "8 engines: 0.900 of new prefixes placed alike"
    ]
    assert placing.missed([replace(GOOD, alone=0.96)]) == ["8 engines: as many with the feed cut"]


def test_the_table_has_a_line_for_each_fleet() -> None:
    assert placing.table([GOOD]).endswith("| 8 | 16 | 1000 | 0.960 | 0.990 | 0.300 |")
