from __future__ import annotations

from collections.abc import Mapping

import pytest

from loadtests.scenarios import overload
from loadtests.scenarios.overload import OURS, SHEDDING
from loadtests.scenarios.table import Figures


@pytest.fixture(scope="module")
def rows() -> Mapping[str, Figures]:
    return overload.run(loads=(2.0,))


def test_shedding_serves_no_fewer_in_time(rows: Mapping[str, Figures]) -> None:
    shed, plain = rows[f"{SHEDDING}, x2"], rows[f"{OURS}, x2"]
    assert shed["refused"] > plain["refused"]
    assert shed["goodput"] >= 0.95 * plain["goodput"]


def test_of_those_refused_few_come_back_too_late(rows: Mapping[str, Figures]) -> None:
    """They ask again when they are told to, as often as it takes."""
    assert rows[f"{SHEDDING}, x2"]["late"] <= 0.3
