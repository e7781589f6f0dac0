from math import exp

import pytest

from policies.congestion import Congestion


def test_an_idle_pool_has_no_price() -> None:
    assert Congestion().price(100.0, 4, 0.0) == 0.0


def test_price_grows_with_utilisation_and_queue() -> None:
    congestion = Congestion()
    for second in range(600):
        congestion.add(float(second), 1.0)
    # Four backends that get one second of work each second are a quarter busy.
    assert congestion.utilisation(599.0, 4) == pytest.approx(0.25, rel=0.02)
    assert congestion.price(599.0, 4, 0.0) == pytest.approx(4 / 3, rel=0.03)
    queued = congestion.price(599.0, 4, 2.0) - congestion.price(599.0, 4, 0.0)
    assert queued == pytest.approx(1.0)


def test_work_is_forgotten() -> None:
    congestion = Congestion()
    congestion.add(0.0, 60.0)
    assert congestion.utilisation(600.0, 1) < 1e-4


def test_utilisation_stays_below_one() -> None:
    congestion = Congestion()
    congestion.add(0.0, 1e6)
    assert congestion.utilisation(0.0, 1) == 0.98


def test_a_clock_that_steps_back_does_no_harm() -> None:
    congestion = Congestion()
    congestion.add(10.0, 6.0)
    # as seen within the ten seconds that count at least
    assert congestion.utilisation(5.0, 1) == pytest.approx(6.0 / (60.0 * (1.0 - exp(-1 / 6))))


def test_a_pool_that_has_just_started_is_no_less_busy() -> None:
    congestion = Congestion()
    for second in range(20):
        congestion.add(float(second), 1.0)
        if second >= 10:
            assert congestion.utilisation(float(second), 4) == pytest.approx(0.25, abs=0.04)
