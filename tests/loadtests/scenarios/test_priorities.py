from __future__ import annotations

from collections.abc import Mapping

import pytest

from loadtests.scenarios import priorities
from loadtests.scenarios.priorities import OURS
from loadtests.scenarios.table import Figures


@pytest.fixture(scope="module")
def rows() -> Mapping[str, Figures]:
    return priorities.run()


def test_low_priority_does_not_starve(rows: Mapping[str, Figures]) -> None:
    assert rows[f"{OURS}, low"]["share of served"] >= 0.05
    assert rows[f"{OURS}, normal"]["share of served"] >= 0.3


def test_high_priority_is_never_refused(rows: Mapping[str, Figures]) -> None:
    assert rows[f"{OURS}, high"]["refused"] == 0.0
    assert rows[f"{OURS}, high"]["TTFT P50"] < rows[f"{OURS}, normal"]["TTFT P50"]


def test_the_higher_wait_less(rows: Mapping[str, Figures]) -> None:
    high, normal, low = (rows[f"{OURS}, {name}"]["TTFT P95"] for name in ("high", "normal", "low"))
    assert high < 15.0
    assert high < normal < low
