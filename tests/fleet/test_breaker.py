from __future__ import annotations

import pytest

from gateway.config import BreakerConfig
from gateway.fleet.breaker import Breaker, BreakerState, Trials

SETTINGS = BreakerConfig(failures=3, window=10.0, share=0.5, open=5.0, max_open=18.0, trials=2)


class Site:
    """A breaker on a clock of its own."""

    def __init__(self, settings: BreakerConfig = SETTINGS) -> None:
        self.now = 100.0
        self.breaker = Breaker(settings, lambda: self.now)

    def fails(self, count: int = 1, *, trial: Trials | None = None) -> None:
        for _ in range(count):
            self.breaker.failed("reset", sent_at=self.now, trial=trial)

    def after(self, seconds: float) -> BreakerState:
        self.now += seconds
        self.breaker.tick()
        return self.breaker.state

    def opens(self) -> None:
        self.fails(3)
        assert self.breaker.state is BreakerState.OPEN

    def tries(self) -> Trials:
        assert self.breaker.until is not None
        assert self.after(self.breaker.until - self.now) is BreakerState.HALF_OPEN
        assert self.breaker.trials is not None
        return self.breaker.trials


@pytest.fixture
def site() -> Site:
    return Site()


# closed


def test_failures_in_a_row_open(site: Site) -> None:
    for _ in range(1000):
        site.breaker.served()
    site.fails(2)
    assert site.breaker.state is BreakerState.CLOSED
    site.fails()
    assert site.breaker.state is BreakerState.OPEN
    assert site.breaker.cause == "3 requests in a row failed: reset"
    assert (site.breaker.since, site.breaker.until) == (100.0, 105.0)


def test_a_share_of_the_window_opens(site: Site) -> None:
    for _ in range(2):
        site.fails()
        site.breaker.served()
    assert site.breaker.state is BreakerState.CLOSED
    site.fails()
    assert site.breaker.state is BreakerState.OPEN
    assert site.breaker.cause == "3 of 5 requests failed: reset"


def test_a_small_share_does_not(site: Site) -> None:
    for _ in range(100):
        site.fails()
        site.breaker.served()
        site.breaker.served()
    assert site.breaker.state is BreakerState.CLOSED


def test_the_window_slides(site: Site) -> None:
    for _ in range(20):
        site.fails()
        assert site.breaker.failures <= 2
        site.breaker.served()
        assert site.after(6.0) is BreakerState.CLOSED
    site.now += 1000.0
    assert site.breaker.failures == 0


def test_the_window_slides_in_steps(site: Site) -> None:
    site.fails()
    site.after(5.0)
    site.breaker.served()
    site.fails()
    assert site.breaker.failures == 2
    site.after(5.0)
    assert site.breaker.failures == 1


# open


def test_what_ends_while_it_is_open_changes_nothing(site: Site) -> None:
    site.opens()
    until = site.breaker.until
    site.fails(10)
    site.breaker.served()
    assert not site.breaker.proved(sent_at=site.now, trial=None)
    assert (site.breaker.state, site.breaker.until) == (BreakerState.OPEN, until)
    assert site.after(4.9) is BreakerState.OPEN


def test_it_is_tried_by_itself(site: Site) -> None:
    site.opens()
    trials = site.tries()
    assert trials.free
    trials.take()
    trials.take()
    assert not trials.free
    trials.give_back()
    assert trials.free


def test_it_can_be_tried_at_once(site: Site) -> None:
    assert not site.breaker.try_now()
    site.opens()
    assert site.breaker.try_now()
    assert site.breaker.state is BreakerState.HALF_OPEN
    assert not site.breaker.try_now()


# half-open


def test_only_a_trial_closes(site: Site) -> None:
    site.opens()
    sent_before = site.now
    trials = site.tries()
    assert not site.breaker.proved(sent_at=site.now, trial=None)
    assert not site.breaker.proved(sent_at=sent_before, trial=Trials(1))
    site.breaker.served()
    assert site.breaker.state is BreakerState.HALF_OPEN
    assert site.breaker.proved(sent_at=site.now, trial=trials)
    assert site.breaker.state is BreakerState.CLOSED
    assert (site.breaker.cause, site.breaker.trials, site.breaker.failures) == ("", None, 0)


def test_only_a_trial_opens_again(site: Site) -> None:
    site.opens()
    trials = site.tries()
    site.fails(10)
    assert site.breaker.state is BreakerState.HALF_OPEN
    site.fails(trial=trials)
    assert site.breaker.state is BreakerState.OPEN
    assert site.breaker.cause == "a trial failed: reset"


def test_it_stays_open_longer_each_time_but_not_for_ever(site: Site) -> None:
    site.opens()
    seconds = []
    for _ in range(40):
        assert site.breaker.until is not None
        seconds.append(site.breaker.until - site.now)
        site.fails(trial=site.tries())
    assert seconds == [5.0, 10.0] + [18.0] * 38


def test_a_trial_that_never_ends_does_not_hold_it_for_ever(site: Site) -> None:
    site.opens()
    lost = site.tries()
    lost.take()
    site.after(5.0)
    assert site.breaker.trials is lost, "one permit is left"
    lost.take()
    site.after(0.1)
    fresh = site.breaker.trials
    assert fresh is not None
    assert fresh is not lost
    assert fresh.free
    site.fails(trial=lost)
    assert site.breaker.state is BreakerState.HALF_OPEN, "it says nothing of the ones after it"
    assert site.breaker.proved(sent_at=site.now - 1.0, trial=lost), "but that it served is proof"


def test_what_was_sent_before_it_closed_does_not_open_it(site: Site) -> None:
    site.opens()
    old = site.now
    trials = site.tries()
    site.now += 1.0
    site.breaker.proved(sent_at=site.now, trial=trials)
    for _ in range(10):
        site.breaker.failed("reset", sent_at=old)
    assert site.breaker.state is BreakerState.CLOSED
    site.opens()


def test_flapping_makes_it_stay_open_longer(site: Site) -> None:
    seconds = []
    for _ in range(3):
        site.opens()
        assert site.breaker.until is not None
        seconds.append(site.breaker.until - site.now)
        trials = site.tries()
        site.breaker.proved(sent_at=site.now, trial=trials)
    assert seconds == [5.0, 10.0, 18.0]
    site.now += 10.1  # a window without trouble
    site.opens()
    assert site.breaker.until == site.now + 5.0
