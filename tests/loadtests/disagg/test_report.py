from __future__ import annotations

from dataclasses import replace

import pytest

from loadtests.disagg import report
from loadtests.disagg.rows import Row
from loadtests.disagg.ways import Way, Wire


def rows(trace: str, never: float, fixed: float, ours: float, wrong: float = 9.0) -> list[Row]:
    def row(way: Way, rate: float) -> Row:
        return Row(trace, Wire(100.0) if way.prefill else None, 0.1, way, rate, 0.25, 2e8)

    return [
        row(Way(0, 512), never),
        row(Way(3, 512, 2048), fixed),
        row(Way(3, 768), ours),
        row(Way(5, 768), wrong),
    ]


@pytest.mark.parametrize(
    ("trace", "ours", "says"),
    [
        ("conversation", 4.33, 0),
        ("conversation", 4.31, 1),
        ("synthetic", 3.93, 0),
        ("synthetic", 3.90, 1),
    ],
)
def test_ours_is_held_against_the_best_other(trace: str, ours: float, says: int) -> None:
    assert len(report.missed(rows(trace, 4.0, 3.5, ours, wrong=3.0))) == says


def test_at_each_ratio_ours_is_held_against_the_fixed_rules_there() -> None:
    of = rows("synthetic", 4.0, 4.2, 3.0, wrong=5.0)
    assert report.missed(of) == [
        "synthetic, 100 ms, 100 Gbit/s: with 3 prefill engines a fixed rule takes 4.20 requests/s,"
        " ours 3.00"
    ]


def test_the_table_has_each_way_once_for_each_network() -> None:
    text = report.table(rows("synthetic", 4.0, 3.5, 4.1))
    assert "synthetic, 100 ms per token, 100 Gbit/s" in text
    assert "| never | all mixed | 512 | 4.00 | 25% | 200 |" in text
    assert "| from 2,048 on, placed as ours | 3:5 | 512 | 3.50 | 25% | 200 |" in text
    assert "| ours | 3:5 | 768 | 4.10 | 25% | 200 |" in text


def test_what_is_only_known_to_be_no_better_is_shown_as_such() -> None:
    bounded = [replace(row, at_most=True) for row in rows("synthetic", 4.0, 3.5, 4.1)]
    assert "| from 2,048 on, placed as ours | 3:5 | 512 | < 3.50 | | |" in report.table(bounded)


def test_at_one_load_the_share_takes_the_place_of_the_load() -> None:
    text = report.table([replace(row, share=0.876) for row in rows("synthetic", 4.0, 3.5, 4.1)])
    assert "| chunk | within the SLO | remote |" in text
    assert "| ours | 3:5 | 768 | 87.6% | 25% | 200 |" in text
    assert "requests/s" not in text


def test_without_handovers_there_is_a_table_without_a_network() -> None:
    text = report.table(rows("synthetic", 4.0, 3.5, 4.1)[:1])
    assert text.startswith("synthetic, 100 ms per token\n")
    assert "| never | all mixed | 512 | 4.00 | 25% | 200 |" in text
