"""The limits of API keys over all replicas.

Each replica counts what it has let in, as one that is alone does; Redis adds the replicas up. What
a request has of requests and tokens and its place among those under way is asked for in one step,
once its size is known; all that only gives back, or repeats, is stated in the background.

    head ─► surely too many? ─► body, facts ─► ask Redis, redis.timeout at most ─► ... ─► settle
                                                  └ away: auth.without_redis

One exchange at a time for each key: what comes meanwhile goes with the next one, together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from gateway.config import KeyLimits
from gateway.http.errors import RequestError
from gateway.http.headers import Headers
from gateway.http.quota_script import QUOTA
from gateway.http.quota_sharing import LimitsUnknown, Sharing
from gateway.http.quotas import WINDOW, KeyUse, Limit, RateLimited, Reservation, Used, rate_headers
from gateway.shared.records import Away, Refused

LATE = 0.05
"""Seconds by which a window ends later here than in Redis: never before, whatever clocks do."""
TOGETHER = 1000
"""Requests that are asked for at once."""
NO_LIMITS = KeyLimits()
_ANSWERS = (None, Limit.REQUESTS, Limit.TOKENS, Limit.CONCURRENCY)


class Ask:
    """A request that waits for its answer.

    Attributes:
        deadline: on the event loop's clock.
    """

    __slots__ = ("answer", "deadline", "reservation", "tokens")

    def __init__(
        self,
        reservation: SharedReservation,
        tokens: int,
        answer: asyncio.Future[None],
        deadline: float,
    ) -> None:
        self.reservation = reservation
        self.tokens = tokens
        self.answer = answer
        self.deadline = deadline


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
        if self._shared.asks_redis:
            return self._shared.ask(self, tokens)
        self._shared.decide_alone(self, tokens, now)
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
        "_asks",
        "_busy",
        "_dirty",
        "_key",
        "_others",
        "_sharing",
        "_started",
        "_stated",
        "asking",
        "held",
    )

    def __init__(self, sharing: Sharing, name: str, limits: KeyLimits) -> None:
        super().__init__(limits)
        self._sharing = sharing
        self.asking = 0
        self.held = 0
        self._key = sharing.commands.key("limits", name)
        self._others = Used()
        self._started = 0
        """The window's start as Redis says, in ms; 0 before it has."""
        self._asks: list[Ask] = []
        self._busy = False
        self._dirty = False
        """What was stated last no longer holds."""
        self._stated = -WINDOW

    def enter(self, now: float) -> Reservation:
        """As of one that is alone; it does not count yet where replicas count together.

        Raises:
            LimitsUnknown: Redis is away, and nothing is let in then.
        """
        if self.limits == NO_LIMITS:
            return super().enter(now)
        self.turn(now)
        limits, others = self.limits, self._others.requests
        if not self._sharing.asks:
            limits, others = self._sharing.alone(limits), 0
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

    @property
    def asks_redis(self) -> bool:
        """Whether it is decided there who is let in."""
        return self._sharing.asks

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

    def used(self, now: float) -> Used:
        """By all replicas while they count together, here otherwise."""
        self.turn(now)
        others = Used() if self._sharing.local else self._others
        return Used(
            self.requests.used + self.asking + others.requests,
            self.tokens.used + others.tokens,
            self.concurrent + others.concurrent,
        )

    def headers(self, now: float) -> Headers:
        limits = self.limits
        if limits.requests_per_minute is None and limits.tokens_per_minute is None:
            return []
        if self._sharing.local:
            limits = self._sharing.share(limits)
        left = self.requests.left(now)
        return rate_headers(limits, self.used(now), left, left)

    def counts(self) -> None:
        """A request counts."""
        self.requests.used += 1
        self.requests_total += 1

    # what is asked

    def ask(self, reservation: SharedReservation, tokens: int) -> asyncio.Future[None]:
        """Whether a request may be sent; raises `RateLimited` or `LimitsUnknown` if not."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        self._asks.append(Ask(reservation, tokens, answer, loop.time() + self._sharing.timeout))
        self._send()
        return answer

    def decide_alone(self, reservation: SharedReservation, tokens: int, now: float) -> None:
        """Let a request in, or not, by what was used here.

        Raises:
            RateLimited, LimitsUnknown
        """
        self.turn(now)
        self._dirty = True
        try:
            limits = self._sharing.alone(self.limits)
        except LimitsUnknown:
            self.asking -= 1
            reservation.asking = False
            raise
        self._sharing.decided_alone += 1
        self._decide(reservation, self._over_alone(limits, tokens), tokens, limits, now)

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
        tokens: int,
        limits: KeyLimits,
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
        replicas = 1 if limits is self.limits else self._sharing.replicas
        return self.limited(limit, allowed, seconds, replicas)

    # what is stated

    def changed(self) -> None:
        """Something was given back, or used without asking."""
        self._dirty = True
        if self.limits.max_concurrent is not None:
            # Whoever ends a request may begin the next one at another replica at once.
            self._send()

    def due(self, now: float) -> bool:
        """Whether Redis should hear of it without being asked anything."""
        self.turn(now)
        if self._dirty:
            return True
        if self.limits == NO_LIMITS:
            return False
        # Again and again, for the lease, and in case that Redis has lost it.
        counted = self.held or self.requests.used or self.tokens.used
        return bool(counted) and now - self._stated >= self._sharing.lease / 3

    def again(self) -> None:
        """Let it be stated anew."""
        self._stated = -WINDOW

    def state(self) -> None:
        """Tell Redis what is used here."""
        self._dirty = True
        self._send()

    def _send(self) -> None:
        if not self._busy and self._sharing.asks:
            self._busy = True
            self._sharing.spawn(self._exchange())

    async def _exchange(self) -> None:
        sharing = self._sharing
        loop = asyncio.get_running_loop()
        asks: list[Ask] = []
        try:
            while self._asks or self._dirty:
                asks = self._asks[:TOGETHER]
                del self._asks[:TOGETHER]
                self._dirty = False
                timer = loop.call_at(asks[0].deadline, self._late, asks) if asks else None
                try:
                    reply = await sharing.commands.run(QUOTA, [self._key], self._statement(asks))
                finally:
                    if timer is not None:
                        timer.cancel()
                sharing.succeeded()
                self._take_in(reply, asks)
        except (Away, Refused):
            self._dirty = True
            sharing.failed()
        finally:
            self._busy = False
            if self._asks or not all(ask.answer.done() for ask in asks):
                self._late(asks)

    def _statement(self, asks: list[Ask]) -> list[bytes | str | int | float]:
        sharing, limits = self._sharing, self.limits
        now = sharing.clock()
        self.turn(now)
        self._stated = now
        age = round((now - self.requests.start) * 1000)
        return [
            sharing.replica,
            next(sharing.numbers),
            round(sharing.lease * 1000),
            round(WINDOW * 1000),
            self._started or -age,
            self.requests.used,
            self.tokens.used,
            self.held,
            *(
                -1 if most is None else most
                for most in (
                    limits.requests_per_minute,
                    limits.tokens_per_minute,
                    limits.max_concurrent,
                )
            ),
            *(ask.tokens for ask in asks),
        ]

    def _take_in(self, reply: list[int], asks: list[Ask]) -> None:
        if not reply:  # overtaken, which those who asked cannot have waited for
            self._dirty = True
            self._late(asks)
            return
        self._started, age, kept, *others = reply[:6]
        now = self._sharing.clock()
        start = now - age / 1000 + LATE
        for window in (self.requests, self.tokens):
            if kept:
                window.start = start
            else:
                window.begin(start)
        self._others = Used(*others)
        limits = self.limits
        for ask, number in zip(asks, reply[6:], strict=True):
            if ask.answer.done():
                self._dirty = True  # granted to nobody
                continue
            self._sharing.decided_shared += 1
            self._answer(ask, _ANSWERS[number], limits, now)

    def _late(self, asks: list[Ask]) -> None:
        """Wait no longer for Redis."""
        self._sharing.failed()
        waiting, self._asks = [*asks, *self._asks], []
        now = self._sharing.clock()
        for ask in waiting:
            if not ask.answer.done():
                try:
                    self.decide_alone(ask.reservation, ask.tokens, now)
                except RequestError as error:
                    ask.answer.set_exception(error)
                else:
                    ask.answer.set_result(None)

    def _answer(self, ask: Ask, limit: Limit | None, limits: KeyLimits, now: float) -> None:
        try:
            self._decide(ask.reservation, limit, ask.tokens, limits, now)
        except RateLimited as error:
            ask.answer.set_exception(error)
        else:
            ask.answer.set_result(None)
