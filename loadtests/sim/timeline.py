"""Time and timers: the event loop's for a live engine, a heap of events for a replay."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timeline(Protocol):
    def time(self) -> float:
        """Seconds, never going back."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call once at `when`, or as soon as possible when that is over; never from in here."""


class LiveTimeline:
    """Real time under asyncio.

    The loop's own `time()` is not used: uvloop rounds it to milliseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def time(self) -> float:
        return time.monotonic()

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(max(0.0, when - time.monotonic()), callback)


class Event:
    """A timer of a `VirtualTimeline`."""

    __slots__ = ("_callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        if self._callback is not None:
            self._callback()


class VirtualTimeline:
    """Time that jumps from one event to the next. Events of one instant fire in their order."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._events: list[tuple[float, int, Event]] = []
        self._order = count()

    def time(self) -> float:
        return self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Event:
        event = Event(max(when, self._now), callback)
        heapq.heappush(self._events, (event.when, next(self._order), event))
        return event

    def run(self, until: float = float("inf")) -> None:
        """Fire all events up to `until`, those that the events themselves add included."""
        events = self._events
        while events and events[0][0] <= until:
            self._now, _, event = heapq.heappop(events)
            event.fire()
