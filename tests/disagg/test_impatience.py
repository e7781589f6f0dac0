from __future__ import annotations

import pytest

from gateway.disagg.impatience import NOBODY, Impatience, made_late


def filled() -> Impatience:
    impatience = Impatience()
    for second in range(600):
        impatience.add("short", float(second), 1.8)
        impatience.add("long", float(second), 20.0)
    return impatience


def test_a_prefill_makes_late_who_comes_while_the_rest_of_it_is_more_than_they_can_spare() -> None:
    short, long = (filled().at(id, 600.0) for id in ("short", "long"))
    assert made_late(short, 1.7) == 0.0
    assert made_late(short, 4.8) == pytest.approx(3.0, rel=0.05)
    assert made_late(long, 4.8) == 0.0
    assert made_late(NOBODY, 100.0) == 0.0


def test_a_queue_is_waited_for_by_those_who_cannot_go_before_it() -> None:
    long = filled().at("long", 600.0)
    assert made_late(long, 10.0, queue=15.0, spare=8.0) == pytest.approx(5.0, rel=0.05)
    assert made_late(long, 10.0, queue=15.0, spare=30.0) == 0.0, "they go first"
    assert made_late(long, 10.0, queue=90.0, spare=8.0) == pytest.approx(10.0, rel=0.05), (
        "those who are late in any case do not count"
    )


def test_fades_and_knows_nothing_of_an_engine_that_nothing_came_to() -> None:
    impatience = Impatience()
    impatience.add("a", 0.0, 1.0)
    assert made_late(impatience.at("a", 0.0), 61.0) == pytest.approx(1.0)
    assert made_late(impatience.at("a", 600.0), 61.0) < 1e-4
    assert impatience.at("never", 600.0) == NOBODY


def test_engines_that_are_gone_are_forgotten() -> None:
    impatience = Impatience()
    for number in range(5000):
        impatience.add(f"engine-{number}", 10.0 * number, 1.0)
    assert len(impatience._counts) <= 128
    assert made_late(impatience.at("engine-4999", 49_990.0), 61.0) > 0.9
