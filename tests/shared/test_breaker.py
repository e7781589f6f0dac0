from __future__ import annotations

import logging

import pytest

from gateway.shared.breaker import Breaker


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def up() -> tuple[Breaker, Time]:
    time = Time()
    breaker = Breaker(time)
    breaker.came_up("r:1")
    return breaker, time


def test_it_is_down_until_a_server_was_good() -> None:
    breaker, time = up()
    assert breaker.up
    assert (breaker.state.server, breaker.state.cause, breaker.state.since) == ("r:1", "", time.now)
    assert not Breaker(time).up


def test_three_failures_in_a_row_take_it_down() -> None:
    breaker, time = up()
    closed: list[str] = []
    breaker.closed.append(lambda: closed.append("closed"))
    for number in range(3):
        assert breaker.up
        breaker.failed("slow", number, number + 0.5)
    time.now = 200.0
    assert not breaker.up
    assert breaker.state.cause == "slow"
    assert breaker.state.since == 100.0
    assert closed == ["closed"]


def test_a_success_between_them_does_not() -> None:
    breaker, _ = up()
    for number in range(10):
        breaker.failed("slow", number, number + 0.5)
        if number % 2:
            breaker.done()
    assert breaker.up


def test_a_hiccup_that_many_met_counts_once() -> None:
    breaker, _ = up()
    for number in range(100):
        breaker.failed("slow", number / 1000, 0.5 + number / 1000)
    assert breaker.up


def test_one_line_for_each_change_of_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "prefixgate.redis")
    breaker = Breaker(Time())
    for cause in ("refused", "refused", "slow"):
        breaker.down(cause)
    breaker.came_up("r:1")
    breaker.down("gone")
    breaker.down("gone")
    assert [record.getMessage() for record in caplog.records] == [
        "redis: nothing is shared for now: refused",
        "redis: shared through r:1",
        "redis: nothing is shared for now: gone",
    ]
    assert breaker.state.cause == "gone"


def test_what_comes_and_goes_is_tried_less_and_less_often() -> None:
    breaker, time = up()
    time.now += 60
    breaker.down("gone")
    assert (breaker.retry_at_once, breaker.pause) == (True, 0.5)
    pauses = []
    for _ in range(6):
        breaker.came_up("r:1")
        time.now += 0.1
        breaker.down("full")
        assert not breaker.retry_at_once
        breaker.down("still full")
        pauses.append(breaker.pause)
    assert pauses == [0.5, 1.0, 2.0, 2.0, 2.0, 2.0]
    breaker.came_up("r:1")
    time.now += 60
    breaker.down("gone")
    assert (breaker.retry_at_once, breaker.pause) == (True, 0.5)
