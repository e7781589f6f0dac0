"""What one API key may use: requests and tokens in a minute, and requests at once.

A request counts from the moment its head was let in, whatever becomes of it. Tokens are reserved by
estimate when its body has been read, and settled at its end: charged is the work that was done, and
the rest is given back.
"""

from __future__ import annotations

import math
from enum import StrEnum

from gateway.config import KeyLimits
from gateway.http.errors import RequestError
from gateway.http.headers import Headers
from gateway.types import Outcome

WINDOW = 60.0
"""Seconds."""


class Limit(StrEnum):
    """Which limit held a request back."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    CONCURRENCY = "concurrency"


class RateLimited(RequestError):
    """Attributes:
    limit: the one that was reached.
    """

    status = 429
    type = "rate_limit_error"
    outcome = Outcome.REJECTED

    def __init__(self, limit: Limit, allowed: int, retry_after: int) -> None:
        what = {
            Limit.REQUESTS: f"{allowed} requests in a minute",
            Limit.TOKENS: f"{allowed} tokens in a minute",
            Limit.CONCURRENCY: f"{allowed} requests at once",
        }
        super().__init__(
            f"This API key is limited to {what[limit]}.",
            code="rate_limit_exceeded",
            retry_after=retry_after,
        )
        self.limit = limit


class Window:
    """A count that begins anew every `WINDOW` seconds, however often it is asked.

    The windows follow one another from the first use on; none is ever put off. Around the end of
    one, up to twice the limit can come within `WINDOW` seconds.

    Attributes:
        used: in the current window.
        number: of the current window; what was taken in one is given back in that one only.
    """

    __slots__ = ("_start", "number", "used")

    def __init__(self) -> None:
        self._start = -math.inf
        self.used = 0
        self.number = 0

    def turn(self, now: float) -> None:
        """Begin a new window if it is time."""
        if now - self._start >= WINDOW:
            # On the old one's beat; anew after a pause.
            late = now - self._start
            self._start = now - (late % WINDOW if late < 2 * WINDOW else 0.0)
            self.used = 0
            self.number += 1

    def left(self, now: float) -> float:
        """Seconds to the end of the current window; 0 while there is none."""
        return max(0.0, self._start + WINDOW - now)


class Reservation:
    """What one request holds of its key's limits; given back exactly once."""

    __slots__ = ("_tokens", "_use", "_window")

    def __init__(self, use: KeyUse) -> None:
        self._use: KeyUse | None = use
        self._tokens = 0
        self._window = 0

    def reserve(self, tokens: int, now: float) -> None:
        """Raises:
        RateLimited: the tokens do not fit into what is left. More than the whole limit fits when
            nothing is used yet.
        """
        use = self._use
        assert use is not None
        window, limit = use.tokens, use.limits.tokens_per_minute
        window.turn(now)
        if limit is not None and window.used and window.used + tokens > limit:
            raise use.limited(Limit.TOKENS, limit, window.left(now))
        window.used += tokens
        self._tokens, self._window = tokens, window.number

    def settle(self, tokens: int, now: float) -> None:
        """The request has ended.

        Args:
            tokens: of the work that was done.
        """
        use, self._use = self._use, None
        if use is None:
            return
        use.concurrent -= 1
        use.tokens_charged += tokens
        window = use.tokens
        window.turn(now)
        if window.number == self._window:
            window.used = max(0, window.used + tokens - self._tokens)
        else:
            window.used += tokens


class KeyUse:
    """How much of its limits a key has used. It outlives a change of the limits.

    Attributes:
        limits: those that hold now.
        concurrent: requests under way.
        requests_total, tokens_charged: since the start.
        refused: requests that were held back, by limit.
    """

    __slots__ = (
        "concurrent",
        "limits",
        "refused",
        "requests",
        "requests_total",
        "tokens",
        "tokens_charged",
    )

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.requests = Window()
        self.tokens = Window()
        self.concurrent = 0
        self.requests_total = 0
        self.tokens_charged = 0
        self.refused = dict.fromkeys(Limit, 0)

    def enter(self, now: float) -> Reservation:
        """A request is let in.

        Raises:
            RateLimited: there are too many, at once or in this minute; it does not count then.
        """
        limits, requests = self.limits, self.requests
        requests.turn(now)
        if limits.max_concurrent is not None and self.concurrent >= limits.max_concurrent:
            raise self.limited(Limit.CONCURRENCY, limits.max_concurrent, 1.0)
        allowed = limits.requests_per_minute
        if allowed is not None and requests.used >= allowed:
            raise self.limited(Limit.REQUESTS, allowed, requests.left(now))
        requests.used += 1
        self.requests_total += 1
        self.concurrent += 1
        return Reservation(self)

    def limited(self, limit: Limit, allowed: int, seconds: float) -> RateLimited:
        """Count a request that is held back.

        Args:
            seconds: until it can come again.
        """
        self.refused[limit] += 1
        return RateLimited(limit, allowed, max(1, math.ceil(seconds)))

    def headers(self, now: float) -> Headers:
        """What is left, in OpenAI's headers; none for what is not limited."""
        found: Headers = []
        for name, window, limit in (
            (b"requests", self.requests, self.limits.requests_per_minute),
            (b"tokens", self.tokens, self.limits.tokens_per_minute),
        ):
            if limit is not None:
                window.turn(now)
                found += (
                    (b"x-ratelimit-limit-" + name, b"%d" % limit),
                    (b"x-ratelimit-remaining-" + name, b"%d" % max(0, limit - window.used)),
                    (b"x-ratelimit-reset-" + name, b"%.3fs" % window.left(now)),
                )
        return found
