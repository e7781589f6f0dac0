from __future__ import annotations

from dataclasses import replace

from loadtests.disagg.rows import Row, means
from loadtests.disagg.ways import Way, Wire

ROW = Row("synthetic", Wire(100.0), 0.1, Way(3, 512), 4.0, 0.1, 2e8, share=0.75)


def test_windows_of_one_way_in_one_setting_become_their_mean() -> None:
    later = replace(ROW, rate=6.0, remote=0.5, moved=4e8, share=0.25)
    assert means([ROW, later]) == [replace(ROW, rate=5.0, remote=0.3, moved=3e8, share=0.5)]


def test_other_ways_and_settings_are_kept_apart_and_in_order() -> None:
    rows = [
        ROW,
        replace(ROW, trace="conversation"),
        replace(ROW, wire=None),
        replace(ROW, wire=Wire(10.0)),
        replace(ROW, pace=0.05),
        replace(ROW, way=Way(2, 512)),
    ]
    assert means(rows) == rows


def test_a_mean_of_a_bound_is_a_bound_and_of_searches_has_no_share() -> None:
    searched = replace(ROW, share=None)
    (mean,) = means([searched, replace(searched, at_most=True)])
    assert mean.at_most
    assert mean.share is None
