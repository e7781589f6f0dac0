from __future__ import annotations

from collections.abc import Mapping

import pytest

from loadtests.scenarios import flood
from loadtests.scenarios.flood import GREEDY, NO_TENANTS, OURS, jain
from loadtests.scenarios.table import Figures


@pytest.fixture(scope="module")
def rows() -> Mapping[str, Figures]:
    return flood.run()


def test_nobody_normal_is_refused_for_the_flooder(rows: Mapping[str, Figures]) -> None:
    assert rows[OURS]["refused"] == 0.0
    assert rows[NO_TENANTS]["refused"] > 0.2


def test_the_normal_ones_get_what_they_ask_for(rows: Mapping[str, Figures]) -> None:
    assert rows[OURS]["Jain"] >= 0.95
    assert rows[OURS]["TTFT P95"] < 0.4 * rows[NO_TENANTS]["TTFT P95"]


def test_the_normal_ones_hardly_notice_the_flooder(rows: Mapping[str, Figures]) -> None:
    """The engines are full of the flooder's streams, which prefills are held for: 3.8 times."""
    assert rows[OURS]["TTFT P95"] <= 5 * rows[f"{OURS}, no flooder"]["TTFT P95"]


def test_who_asks_for_more_than_its_share_gets_its_share(rows: Mapping[str, Figures]) -> None:
    assert rows[GREEDY]["Jain of all"] >= 0.9


def test_jains_index() -> None:
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([1.0, 0.0, 0.0, 0.0]) == pytest.approx(0.25)
