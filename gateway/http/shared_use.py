"""What one API key has used, as one of several replicas counts it.

Each replica counts what it has let in, as one that is alone does; Redis adds the replicas up. What
a request has of requests and tokens and its place among those under way is asked for in one step,
once its size is known; all that only gives back, or repeats, is stated in the background.

    head ─► surely too many? ─► body, facts ─► ask Redis, redis.timeout at most ─► ... ─► settle
                                                  └ away: auth.without_redis
"""

from __future__ import annotations

from collections.abc import Awaitable

from gateway.config import KeyLimits
from gateway.http.headers import Headers
from gateway.http.quota_exchange import Exchange
from gateway.http.quota_sharing import LimitsUnknown, QuotaSharing
from gateway.http.quotas import KeyUse, Limit, RateLimited, Reservation, Used, rate_headers

LATE = 0.05
"""Seconds by which a window ends later here than in Redis: never before, whatever clocks do."""
NO_LIMITS = KeyLimits()


class SharedReservation(Reservation):
    """Attributes:
    asking: it is not decided yet.
    held: it counts among those under way.
    """

    __slots__ = ("_shared", "asking", "held")

    def __init__(self, use: SharedUse) -> None:
        super().__init__(use)
        self._shared = use
        self.asking = True
        self.held = False

    def reserve(self, tokens: int, now: float) -> Awaitable[None] | None:
        """As of one that is alone.

        Raises:
            LimitsUnknown: Redis is away, and nothing is let in then.
        """
        use = self._shared
        if use.sharing.asks:
            return use.exchange.ask(self, tokens)
        use.decide_alone(self, tokens, now)
        return None

    def take(self, tokens: int) -> None:
        """It is let in."""
        self.held = True
        self._take(self._shared.tokens, tokens)

    def settle(self, tokens: int, now: float) -> None:
        use = self._shared
        if self._use is None:
            return
        use.turn(now)
        if self.asking:
            # It came to nothing before its size was known, and counts all the same.
            self.asking = False
            use.asking -= 1
            use.counts()
        if self.held:
            use.held -= 1
        super().settle(tokens, now)
        use.changed()


class SharedUse(KeyUse):
    """How much of its limits a key has used here, and what is known of the others.

    Attributes:
        asking: requests that were let in by their heads, and are not decided yet. They count in
            `concurrent`, and nowhere else.
        held: requests that were let in, and are under way.
    """

    __slots__ = (
        "__weakref__",
        "_others",
        "_started",
        "asking",
        "exchange",
        "held",
        "sharing",
    )

    def __init__(self, sharing: QuotaSharing, name: str, limits: KeyLimits) -> None:
        super().__init__(limits)
        self.sharing = sharing
        self.exchange = Exchange(sharing, name, self)
        self.asking = 0
        self.held = 0
        self._others = Used()
        self._started = 0
        """The window's start as Redis says, in ms; 0 before it has."""

    def enter(self, now: float) -> Reservation:
        """As of one that is alone; it does not count yet where replicas count together.

        Raises:
            LimitsUnknown: Redis is away, and nothing is let in then.
        """
        if self.limits == NO_LIMITS:
            return super().enter(now)
        self.turn(now)
        limits, others = self.limits, self._others.requests
        if not self.sharing.asks:
            limits, others = self.sharing.alone(limits), 0
        # What is sure to be refused, without asking: the others only ever add to it.
        most = limits.max_concurrent
        if most is not None and self.concurrent >= most:
            raise self._over(Limit.CONCURRENCY, limits, now)
        most = limits.requests_per_minute
        if most is not None and self.requests.used + self.asking + others >= most:
            raise self._over(Limit.REQUESTS, limits, now)
        self.asking += 1
        self.concurrent += 1
        return SharedReservation(self)

    def turn(self, now: float) -> None:
        """Begin a new window if it is time."""
        window = self.requests
        before, number = window.start, window.number
        window.turn(now)
        if window.number != number:
            if self._started:
                self._started += round((window.start - before) * 1000)
            self.tokens.begin(window.start)
            self._others = Used()

    @property
    def shared(self) -> bool:
        return self.limits != NO_LIMITS and not self.sharing.local

    def used(self, now: float) -> Used:
        """By all replicas while they count together, here otherwise."""
        self.turn(now)
        others = self._others if self.shared else Used()
        return Used(
            self.requests.used + self.asking + others.requests,
            self.tokens.used + others.tokens,
            self.concurrent + others.concurrent,
        )

    def headers(self, now: float) -> Headers:
        limits = self.limits
        if limits.requests_per_minute is None and limits.tokens_per_minute is None:
            return []
        if self.sharing.local:
            limits = self.sharing.share(limits)
        left = self.requests.left(now)
        return rate_headers(limits, self.used(now), left, left)

    def counts(self) -> None:
        """A request counts."""
        self.requests.used += 1
        self.requests_total += 1

    def decide_alone(self, reservation: SharedReservation, tokens: int, now: float) -> None:
        """Let a request in, or not, by what was used here.

        Raises:
            RateLimited, LimitsUnknown
        """
        self.turn(now)
        self.exchange.dirty = True
        try:
            limits = self.sharing.alone(self.limits)
        except LimitsUnknown:
            self.asking -= 1
            reservation.asking = False
            raise
        self.sharing.decided_alone += 1
        self._decide(reservation, self._over_alone(limits, tokens), limits, tokens, now)

    def decide(
        self, reservation: SharedReservation, limit: Limit | None, tokens: int, now: float
    ) -> None:
        """Let a request in, or not, as Redis says.

        Args:
            limit: the one that it would exceed.

        Raises:
            RateLimited
        """
        self._decide(reservation, limit, self.limits, tokens, now)

    def _over_alone(self, limits: KeyLimits, tokens: int) -> Limit | None:
        """Which limit one more request would exceed, by what was used here; as the script has it
        for all."""
        most = limits.max_concurrent
        if most is not None and self.held >= most:
            return Limit.CONCURRENCY
        most = limits.requests_per_minute
        if most is not None and self.requests.used >= most:
            return Limit.REQUESTS
        most, used = limits.tokens_per_minute, self.tokens.used
        return Limit.TOKENS if most is not None and used and used + tokens > most else None

    def _decide(
        self,
        reservation: SharedReservation,
        limit: Limit | None,
        limits: KeyLimits,
        tokens: int,
        now: float,
    ) -> None:
        self.asking -= 1
        reservation.asking = False
        if limit is None or limit is Limit.TOKENS:
            self.counts()
        if limit is not None:
            raise self._over(limit, limits, now)
        self.held += 1
        reservation.take(tokens)

    def _over(self, limit: Limit, limits: KeyLimits, now: float) -> RateLimited:
        allowed = {
            Limit.REQUESTS: limits.requests_per_minute,
            Limit.TOKENS: limits.tokens_per_minute,
            Limit.CONCURRENCY: limits.max_concurrent,
        }[limit]
        assert allowed is not None
        seconds = 1.0 if limit is Limit.CONCURRENCY else self.requests.left(now)
        replicas = 1 if limits is self.limits else self.sharing.replicas
        return self.limited(limit, allowed, seconds, replicas)

    # what is stated

    def changed(self) -> None:
        """Something was given back, or used without asking."""
        self.exchange.dirty = True
        if self.limits.max_concurrent is not None:
            # Whoever ends a request may begin the next one at another replica at once.
            self.exchange.state()

    def due(self, now: float) -> bool:
        """Whether Redis should hear of it without being asked anything."""
        self.turn(now)
        if self.exchange.dirty:
            return True
        if self.limits == NO_LIMITS:
            return False
        # Again and again, for the lease, and in case that Redis has lost it.
        counted = self.held or self.requests.used or self.tokens.used
        return bool(counted) and now - self.exchange.stated >= self.sharing.lease / 3

    def statement(self, now: float) -> list[int]:
        """What the script is told: when the window began, what is used in it and held here, and
        the limits."""
        self.turn(now)
        age = round((now - self.requests.start) * 1000)
        limits = self.limits
        bounds = (limits.requests_per_minute, limits.tokens_per_minute, limits.max_concurrent)
        return [
            self._started or -age,
            self.requests.used,
            self.tokens.used,
            self.held,
            *(-1 if most is None else most for most in bounds),
        ]

    def heard(self, started: int, age: float, kept: bool, others: Used, now: float) -> None:
        """What Redis has answered.

        Args:
            started, age: of the window: in ms, as Redis has it, and in seconds.
            kept: it is the one in which this replica has counted until now.
            others: what the others have used.
        """
        self._started, self._others = started, others
        start = now - age + LATE
        for window in (self.requests, self.tokens):
            if kept:
                window.start = start
            else:
                window.begin(start)
