from __future__ import annotations

import pytest

from gateway.config import KeyLimits
from gateway.http.quotas import WINDOW, KeyUse, Limit, RateLimited


def passes(use: KeyUse, now: float) -> bool:
    try:
        reservation = use.enter(now)
    except RateLimited:
        return False
    reservation.settle(0, now)
    return True


def requests(limit: int) -> KeyUse:
    return KeyUse(KeyLimits(requests_per_minute=limit))


def test_Q13_steady_traffic_below_the_limit_never_meets_it() -> None:
    use = requests(10)
    every = WINDOW / 10
    assert all(passes(use, 5.0 + number * every) for number in range(100))


def test_Q13_a_window_ends_although_refused_requests_keep_coming() -> None:
    use = requests(10)
    assert [passes(use, 100.0) for _ in range(12)] == [True] * 10 + [False] * 2
    refused = [passes(use, 100.0 + second) for second in range(1, int(WINDOW))]
    assert not any(refused)
    assert passes(use, 100.0 + WINDOW)


def test_Q13_around_the_end_of_a_window_comes_at_most_twice_the_limit() -> None:
    use = requests(10)
    assert passes(use, 0.0)
    let_in = [passes(use, WINDOW - 0.1 + step * 0.01) for step in range(100)]
    assert sum(let_in) == 9 + 10
    # A pause starts a window of its own: none is cut short.
    assert passes(use, 1000.5)
    assert use.requests.left(1000.5) == WINDOW


def test_what_is_refused_says_when_to_come_again() -> None:
    use = requests(1)
    passes(use, 10.0)
    with pytest.raises(RateLimited) as caught:
        use.enter(10.0 + 17.5)
    assert (caught.value.limit, caught.value.retry_after) == (Limit.REQUESTS, 43)
    assert use.refused == {Limit.REQUESTS: 1, Limit.TOKENS: 0, Limit.CONCURRENCY: 0}


def test_requests_at_once_are_held_until_their_end() -> None:
    use = KeyUse(KeyLimits(max_concurrent=2))
    first, _ = use.enter(0.0), use.enter(0.0)
    assert not passes(use, 1.0)
    first.settle(0, 1.0)
    first.settle(0, 1.0)  # once is enough
    assert use.concurrent == 1
    assert passes(use, 1.0)


def test_tokens_are_reserved_by_estimate_and_charged_by_work() -> None:
    use = KeyUse(KeyLimits(tokens_per_minute=1000))
    first = use.enter(0.0)
    first.reserve(600, 0.0)
    with pytest.raises(RateLimited):
        use.enter(1.0).reserve(600, 1.0)
    first.settle(100, 2.0)
    assert (use.tokens.used, use.tokens_charged) == (100, 100)
    use.enter(3.0).reserve(900, 3.0)


def test_one_that_is_larger_than_the_limit_goes_when_nothing_is_used() -> None:
    use = KeyUse(KeyLimits(tokens_per_minute=1000))
    use.enter(0.0).reserve(5000, 0.0)
    with pytest.raises(RateLimited):
        use.enter(0.0).reserve(1, 0.0)
    use.enter(WINDOW).reserve(1, WINDOW)


def test_what_was_reserved_in_another_window_is_not_given_back_in_this_one() -> None:
    use = KeyUse(KeyLimits(tokens_per_minute=1000))
    long = use.enter(0.0)
    long.reserve(800, 0.0)
    use.enter(WINDOW).reserve(500, WINDOW)
    long.settle(200, WINDOW + 1)
    assert use.tokens.used == 500 + 200


def test_headers_are_openais() -> None:
    use = KeyUse(KeyLimits(requests_per_minute=10, tokens_per_minute=1000))
    use.enter(30.0).reserve(400, 30.0)
    assert dict(use.headers(45.0)) == {
        b"x-ratelimit-limit-requests": b"10",
        b"x-ratelimit-remaining-requests": b"9",
        b"x-ratelimit-reset-requests": b"45.000s",
        b"x-ratelimit-limit-tokens": b"1000",
        b"x-ratelimit-remaining-tokens": b"600",
        b"x-ratelimit-reset-tokens": b"45.000s",
    }
    assert KeyUse(KeyLimits()).headers(0.0) == []
