"""What one API key may use: requests and tokens in a minute, and requests at once.

A request counts from the moment its head was let in, whatever becomes of it. Tokens are reserved by
estimate when its body has been read, and settled at its end: charged is the work that was done, and
the rest is given back.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable
from enum import StrEnum
from typing import NamedTuple

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
    """Args:
    replicas: how many gateways each allow as much, as they cannot tell each other.

    Attributes:
        limit: the one that was reached.
    """

    status = 429
    type = "rate_limit_error"
    outcome = Outcome.REJECTED

    def __init__(self, limit: Limit, allowed: int, retry_after: int, replicas: int = 1) -> None:
        what = {
            Limit.REQUESTS: f"{allowed} requests in a minute",
            Limit.TOKENS: f"{allowed} tokens in a minute",
            Limit.CONCURRENCY: f"{allowed} requests at once",
        }
        each = "" if replicas == 1 else f" at each of {replicas} gateways, for now"
        super().__init__(
            f"This API key is limited to {what[limit]}{each}.",
            code="rate_limit_exceeded",
            retry_after=retry_after,
        )
        self.limit = limit


class Window:
    """A count that begins anew every `WINDOW` seconds, however often it is asked.

    The windows follow one another from the first use on; none is ever put off. Around the end of
    one, up to twice the limit can come within `WINDOW` seconds.

    Attributes:
        start: of the current window, on the clock of those who ask.
        used: in the current window.
        number: of the current window; what was taken in one is given back in that one only.
    """

    __slots__ = ("number", "start", "used")

    def __init__(self) -> None:
        self.start = -math.inf
        self.used = 0
        self.number = 0

    def turn(self, now: float) -> None:
        """Begin a new window if it is time."""
        late = now - self.start
        if late >= WINDOW:
            # On the old one's beat; anew after a pause.
            self.begin(now - (late % WINDOW if late < 2 * WINDOW else 0.0))

    def begin(self, start: float) -> None:
        """Begin a new window, with nothing used."""
        self.start = start
        self.used = 0
        self.number += 1

    def left(self, now: float) -> float:
        """Seconds to the end of the current window; 0 while there is none."""
        return max(0.0, self.start + WINDOW - now)


class Reservation:
    """What one request holds of its key's limits; given back exactly once."""

    __slots__ = ("_tokens", "_use", "_window")

    def __init__(self, use: KeyUse) -> None:
        self._use: KeyUse | None = use
        self._tokens = 0
        self._window = 0

    def reserve(self, tokens: int, now: float) -> Awaitable[None] | None:
        """Returns:
            What to wait for, which raises as below; None when it is decided already.

        Raises:
            RateLimited: the tokens do not fit into what is left. More than the whole limit fits
                when nothing is used yet.
        """
        use = self._use
        assert use is not None
        window, limit = use.tokens, use.limits.tokens_per_minute
        window.turn(now)
        if limit is not None and window.used and window.used + tokens > limit:
            raise use.limited(Limit.TOKENS, limit, window.left(now))
        self._take(window, tokens)
        return None

    def _take(self, window: Window, tokens: int) -> None:
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


class Used(NamedTuple):
    """What is used of a key's limits: in the current minute, and now."""

    requests: int = 0
    tokens: int = 0
    concurrent: int = 0


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

    def limited(self, limit: Limit, allowed: int, seconds: float, replicas: int = 1) -> RateLimited:
        """Count a request that is held back.

        Args:
            seconds: until it can come again.
            replicas: how many gateways each allow as much.
        """
        self.refused[limit] += 1
        return RateLimited(limit, allowed, max(1, math.ceil(seconds)), replicas)

    @property
    def shared(self) -> bool:
        """Whether `used` is that of all replicas."""
        return False

    def used(self, now: float) -> Used:
        """Of its limits, as far as is known here."""
        self.requests.turn(now)
        self.tokens.turn(now)
        return Used(self.requests.used, self.tokens.used, self.concurrent)

    def headers(self, now: float) -> Headers:
        """What is left, in OpenAI's headers; none for what is not limited."""
        limits = self.limits
        if limits.requests_per_minute is None and limits.tokens_per_minute is None:
            return []
        return rate_headers(limits, self.used(now), self.requests.left(now), self.tokens.left(now))


def rate_headers(
    limits: KeyLimits, used: Used, requests_reset: float, tokens_reset: float
) -> Headers:
    """OpenAI's headers of what is left.

    Args:
        requests_reset, tokens_reset: seconds to the ends of the minutes.
    """
    found: Headers = []
    for name, limit, count, reset in (
        (b"requests", limits.requests_per_minute, used.requests, requests_reset),
        (b"tokens", limits.tokens_per_minute, used.tokens, tokens_reset),
    ):
        if limit is not None:
            found += (
                (b"x-ratelimit-limit-" + name, b"%d" % limit),
                (b"x-ratelimit-remaining-" + name, b"%d" % max(0, limit - count)),
                (b"x-ratelimit-reset-" + name, b"%.3fs" % reset),
            )
    return found
