"""Whether commands are worth sending to Redis. Pure: no I/O, no timers.

DOWN ──the server took a small write──► UP
  ▲                                      │ not reachable, in a state in which it takes no
  └──────────────────────────────────────┘ commands, or several in a row came to nothing
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.types import Clock

logger = logging.getLogger("prefixgate.redis")

_FAILURES = 3
_STEADY = 5.0
"""Seconds for which a server must have been good to be believed at once when it is good again."""
_PAUSES = (0.5, 0.5, 1.0, 2.0)
"""Seconds between attempts while down, by how many times in a row it was good for less."""


class Outcome(StrEnum):
    """What became of a command."""

    DONE = "done"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    LOST = "lost"
    """The connection ended before the answer, or the server was in no state to give one."""
    SKIPPED = "skipped"
    """Not sent: the link was down, or had too much to send."""


@dataclass(slots=True)
class LinkState:
    """Attributes:
    up: whether commands are sent.
    cause: why they are not, in words; "" while they are.
    since: when it came to be so, seconds on the clock.
    server: which one takes the commands, HOST:PORT; "" before the first.
    commands: how many had which outcome.
    seconds: that answers took, summed over the commands that are done.
    reconnects: connections that were lost and made again.
    """

    up: bool
    cause: str
    since: float
    server: str = ""
    commands: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    seconds: float = 0.0
    reconnects: int = 0


class Breaker:
    """Attributes:
    state: for people and metrics.
    closed: what else is done when it goes down.
    """

    def __init__(self, clock: Clock) -> None:
        self.state = LinkState(False, "not asked yet", clock())
        self.closed: list[Callable[[], None]] = []
        self._clock = clock
        self._in_a_row = 0
        self._failed_at = 0.0
        self._said: bool | None = None
        self._relapses = 0

    @property
    def up(self) -> bool:
        return self.state.up

    @property
    def retry_at_once(self) -> bool:
        """Whether a server that has just gone down may be tried without a pause."""
        return not self._relapses

    @property
    def pause(self) -> float:
        """Seconds between attempts while down: more and more where it comes and goes, which costs
        requests more than being away does."""
        return _PAUSES[min(self._relapses, len(_PAUSES) - 1)]

    def done(self) -> None:
        self._in_a_row = 0

    def failed(self, cause: str, started: float, now: float) -> None:
        """A command came to nothing. Those that were under way together count as one, so that a
        hiccup of the server is no outage because many met it.

        Args:
            started, now: seconds on any one clock.
        """
        if started >= self._failed_at:
            self._failed_at = now
            self._in_a_row += 1
            if self._in_a_row >= _FAILURES:
                self.down(cause)

    def down(self, cause: str) -> None:
        """Or still down, for another cause."""
        self.state.cause = cause
        if self.state.up:
            steady = self._clock() - self.state.since >= _STEADY
            self._relapses = 0 if steady else self._relapses + 1
            self._change(up=False)
            for close in self.closed:
                close()
        if self._said is not False:
            self._said = False
            logger.warning("redis: nothing is shared for now: %s", cause)

    def came_up(self, server: str) -> None:
        self._in_a_row = 0
        self.state.server, self.state.cause = server, ""
        self._change(up=True)
        self._said = True
        logger.info("redis: shared through %s", server)

    def stop(self) -> None:
        """For good."""
        self.state.cause = "stopped"
        self._change(up=False)
        for close in self.closed:
            close()

    def _change(self, *, up: bool) -> None:
        self.state.up, self.state.since = up, self._clock()
