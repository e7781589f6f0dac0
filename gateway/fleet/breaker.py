"""Whether requests are sent to a backend at which requests have failed. Pure: no I/O, no timers.

    CLOSED ──too many failures──► OPEN ──time is up, or a probe saw it come back──► HALF_OPEN
       ▲                            ▲                                                │    │
       └────────────────────────────┼──────────────── a trial was served ────────────┘    │
                                    └──────────────── a trial failed ─────────────────────┘

Requests that were sent before the last change of state say nothing about what came after it: while
half-open only trials count, and once closed only what was sent since.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from math import inf

from gateway.config import BreakerConfig
from gateway.types import Clock

_SLOTS = 10
"""Parts of the window. It slides by one of them at a time."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    """Nothing is sent there."""
    HALF_OPEN = "half_open"
    """A few requests at a time are, until one is served or fails."""


class Trials:
    """Permits for requests to a backend that is not trusted yet. A lease holds one at a time.

    Attributes:
        limit: how many may be out.
        out: how many are.
    """

    __slots__ = ("limit", "out")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.out = 0

    @property
    def free(self) -> bool:
        return self.out < self.limit

    def take(self) -> None:
        self.out += 1

    def give_back(self) -> None:
        self.out -= 1


class Window:
    """Requests of the last so many seconds that were served, and that failed."""

    __slots__ = ("_clock", "_failed", "_seconds", "_served", "_slot")

    def __init__(self, seconds: Callable[[], float], clock: Clock) -> None:
        self._seconds = seconds
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        self._served = [0] * _SLOTS
        self._failed = [0] * _SLOTS
        self._slot = self._now()

    @property
    def served(self) -> int:
        self._slide()
        return sum(self._served)

    @property
    def failed(self) -> int:
        self._slide()
        return sum(self._failed)

    def note(self, *, served: bool) -> None:
        slot = self._slide() % _SLOTS
        if served:
            self._served[slot] += 1
        else:
            self._failed[slot] += 1

    def _now(self) -> int:
        return int(self._clock() * _SLOTS / self._seconds())

    def _slide(self) -> int:
        now, last = self._now(), self._slot
        if now != last:
            self._slot = now
            passed = now - last
            for slot in range(_SLOTS) if not 0 < passed < _SLOTS else range(last + 1, now + 1):
                self._served[slot % _SLOTS] = self._failed[slot % _SLOTS] = 0
        return now


class Breaker:
    """One backend's. Each method that may change the state returns whether it did.

    Attributes:
        settings: may be replaced at any time.
        state: as of the last call; what only time ends, `tick` does.
        cause: the failure that opened it; "" while it is closed.
        since: when it came to its state, seconds on the clock.
        until: when it will be tried again; None unless it is open.
        trials: the permits of those who try it; None unless it is half-open. Each round has its
            own, so that one who never comes back holds up a round and no more.
    """

    __slots__ = (
        "_clock",
        "_closed_at",
        "_in_a_row",
        "_openings",
        "_round",
        "_window",
        "cause",
        "settings",
        "since",
        "state",
        "trials",
        "until",
    )

    def __init__(self, settings: BreakerConfig, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._window = Window(lambda: self.settings.window, clock)
        self._in_a_row = 0
        self._openings = 0
        self._closed_at = -inf
        self._round = inf
        self.state = BreakerState.CLOSED
        self.cause = ""
        self.since = clock()
        self.until: float | None = None
        self.trials: Trials | None = None

    @property
    def failures(self) -> int:
        """Within the window."""
        return self._window.failed

    def failed(
        self, cause: str, *, sent_at: float | None = None, trial: Trials | None = None
    ) -> bool:
        """A request failed by the backend's fault.

        Args:
            sent_at: when it was sent there; None for now.
            trial: the permit it held.
        """
        self._window.note(served=False)
        if self.state is BreakerState.HALF_OPEN:
            if trial is not self.trials:
                return False
            self._open(f"a trial failed: {cause}")
            return True
        if self.state is BreakerState.OPEN or (sent_at is not None and sent_at < self.since):
            return False
        self._in_a_row += 1
        if self._in_a_row >= self.settings.failures:
            self._open(f"{self._in_a_row} requests in a row failed: {cause}")
        elif self._is_share():
            failed, window = self._window.failed, self._window
            self._open(f"{failed} of {failed + window.served} requests failed: {cause}")
        else:
            return False
        return True

    def served(self) -> None:
        """A request was served, from beginning to end."""
        self._window.note(served=True)
        self._in_a_row = 0

    def proved(self, *, sent_at: float, trial: Trials | None) -> bool:
        """A request has begun to be served.

        Args:
            sent_at: when it was sent there.
            trial: the permit it held, of this round or an earlier one.
        """
        if self.state is not BreakerState.HALF_OPEN or trial is None or sent_at < self.since:
            return False
        self._closed_at = self._clock()
        self._become(BreakerState.CLOSED)
        self.cause = ""
        self._in_a_row = 0
        self._window.clear()
        return True

    def try_now(self) -> bool:
        """Something else has shown that the backend is back."""
        if self.state is not BreakerState.OPEN:
            return False
        self._half_open()
        return True

    def tick(self) -> bool:
        """Go on to what is due: the first trials, or others where those said nothing in time."""
        now = self._clock()
        if self.state is BreakerState.OPEN and self.until is not None and now >= self.until:
            self._half_open()
            return True
        if self.state is BreakerState.HALF_OPEN and now >= self._round:
            assert self.trials is not None
            if not self.trials.free:
                self._begin_round()
                return True
        return False

    def _is_share(self) -> bool:
        failed = self._window.failed
        return failed >= self.settings.failures and failed >= self.settings.share * (
            failed + self._window.served
        )

    def _open(self, cause: str) -> None:
        settings, now = self.settings, self._clock()
        if self.state is BreakerState.CLOSED and now - self._closed_at > settings.window:
            self._openings = 0
        # Not more than is needed to reach any limit: the shift must not grow without bound.
        seconds = min(settings.open * (1 << min(self._openings, 20)), settings.max_open)
        self._openings += 1
        self._become(BreakerState.OPEN)
        self.cause = cause
        self.until = now + seconds

    def _half_open(self) -> None:
        self._become(BreakerState.HALF_OPEN)
        self._begin_round()

    def _begin_round(self) -> None:
        self.trials = Trials(self.settings.trials)
        self._round = self._clock() + self.settings.open

    def _become(self, state: BreakerState) -> None:
        self.state = state
        self.since = self._clock()
        self.until = None
        self.trials = None
