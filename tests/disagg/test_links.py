from __future__ import annotations

import pytest

from gateway.disagg.links import LAYERS, PRIOR_BANDWIDTH, SETUP_SECONDS, Links


def test_before_anything_was_seen_the_prior_says_how_long_it_takes() -> None:
    links = Links(1000.0)
    assert links.seconds("p", "d", 3e6) == pytest.approx(SETUP_SECONDS + 3e9 / PRIOR_BANDWIDTH)
    assert links.seconds("p", "d", 0.0) == 0.0


def test_learns_the_bandwidth_of_each_engine_and_leans_on_the_others() -> None:
    links = Links(1.0)
    for turn in range(40):
        links.began(turn, "p", "fast", 1e9, 2.0 * turn)
        links.ended(turn, 2.0 * turn + 0.1 + SETUP_SECONDS)
        links.began((turn,), "p", "slow", 1e9, 2.0 * turn)
        links.ended((turn,), 2.0 * turn + 1.0 + SETUP_SECONDS)
    assert links.bandwidth("fast") > 6e9
    assert links.bandwidth("slow") == pytest.approx(1e9, rel=0.1)
    assert links.bandwidth("slow") < links.bandwidth("new") < links.bandwidth("fast")


def test_what_is_under_way_goes_first() -> None:
    links = Links(1.0, fixed=1e9)
    links.began("one", "p", "d", 5e8, 0.0)
    links.began("two", "q", "d", 5e8, 0.0)
    assert links.seconds("r", "d", 1e9) == pytest.approx(SETUP_SECONDS + 2.0)
    assert links.seconds("p", "e", 1e9) == pytest.approx(SETUP_SECONDS + 1.5)
    assert links.seconds("r", "e", 1e9) == pytest.approx(SETUP_SECONDS + 1.0)
    links.dropped("one")
    links.ended("two", 1.0)
    assert links.seconds("r", "d", 1e9) == pytest.approx(SETUP_SECONDS + 1.0)


def test_transfers_that_wait_for_each_other_do_not_make_the_network_look_slow() -> None:
    links = Links(1.0)
    for turn in range(30):
        at = 4.0 * turn
        links.began("a", "p", "d", 1e9, at)
        links.began("b", "p", "d", 1e9, at)
        links.ended("a", at + 1.0 + SETUP_SECONDS)
        links.ended("b", at + 2.0 + SETUP_SECONDS)
    assert links.bandwidth("d") == pytest.approx(1e9, rel=0.1)


def test_layers_that_are_sent_during_the_prefill_take_no_time_of_their_own() -> None:
    links = Links(1.0, fixed=1e9)
    assert links.seconds("p", "d", 1e9) == pytest.approx(SETUP_SECONDS + 1.0)
    assert links.seconds("p", "d", 1e9, during=0.4) == pytest.approx(SETUP_SECONDS + 0.6)
    assert links.seconds("p", "d", 1e9, during=9.0) == pytest.approx(SETUP_SECONDS + 1 / LAYERS)


def test_what_ends_twice_or_was_never_begun_is_ignored() -> None:
    links = Links(1.0)
    links.began("one", "p", "d", 1e9, 0.0)
    assert links.ended("one", 1.0, step=0.25) == pytest.approx(0.75)
    assert links.ended("one", 9.0) is None
    links.dropped("never")
    assert links.moved == 1e9


def test_a_decode_engine_that_prefills_does_not_make_the_network_look_slow() -> None:
    links = Links(1.0)
    for turn in range(40):
        links.began(turn, "p", "d", 1e9, 4.0 * turn)
        links.ended(turn, 4.0 * turn + 0.1 + SETUP_SECONDS)
    before = links.bandwidth("d")
    for turn in range(40, 60):
        links.began(turn, "p", "d", 1e9, 4.0 * turn, busy=turn % 2 == 0)
        links.ended(turn, 4.0 * turn + 3.0, busy=turn % 2 == 1)
    assert links.bandwidth("d") == before
    assert links.moved == pytest.approx(60e9)
    links.began("idle", "p", "d", 1e9, 300.0)
    links.ended("idle", 303.0)
    assert links.bandwidth("d") < before


def test_a_gap_that_is_shorter_than_expected_counts_in_any_case() -> None:
    links = Links(1.0)
    for turn in range(60):
        links.began(turn, "p", "d", 1e9, 4.0 * turn, busy=True)
        links.ended(turn, 4.0 * turn + 0.1 + SETUP_SECONDS)
    assert links.bandwidth("d") > 2 * PRIOR_BANDWIDTH
