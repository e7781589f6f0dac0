from __future__ import annotations

from collections.abc import Mapping

import pytest

from loadtests.scenarios import hot_prefix
from loadtests.scenarios.hot_prefix import OURS, OWNER_ONLY
from loadtests.scenarios.table import Figures


@pytest.fixture(scope="module")
def rows() -> Mapping[str, Figures]:
    return hot_prefix.run()


@pytest.mark.parametrize("where", ["alone", "among others"])
def test_copies_take_the_load_and_nearly_everything_is_still_a_hit(
    rows: Mapping[str, Figures], where: str
) -> None:
    ours, owner = rows[f"{OURS}, {where}"], rows[f"{OWNER_ONLY}, {where}"]
    assert ours["of owner's"] >= 0.9
    assert ours["TTFT P95"] < 0.2 * owner["TTFT P95"]


def test_among_other_work_it_is_ahead_of_what_ignores_prefixes(
    rows: Mapping[str, Figures],
) -> None:
    ours, blind = rows[f"{OURS}, among others"], rows["power_of_two, among others"]
    assert ours["TTFT P95"] < blind["TTFT P95"]
    assert ours["all TTFT P95"] < blind["all TTFT P95"]
    assert ours["work CV"] <= 0.3


def test_alone_it_spreads_over_all_engines(rows: Mapping[str, Figures]) -> None:
    assert rows[f"{OURS}, alone"]["work CV"] <= 0.3


def test_the_owner_alone_cannot_serve_it() -> None:
    assert hot_prefix.LOAD > 1.1
    assert 4 < hot_prefix.owner_rate() < 12
