"""Who would be blocked: how many of those who come to an engine are made late by one prompt.

An engine prefills in the order of arrival and cannot be stopped. Those who come while it is busy
with one prompt wait for the rest of it, and are late if that is more than they can spare. A prompt
that takes it T seconds makes n * (T - s) late of those who can spare s and come n times a second:
nobody as long as T is less than that, and more than anything else it costs from there on. It is
what sorts prompts by length where there are engines that mostly get long ones, whose like can wait,
and others that mostly get short ones, which cannot.
"""

from __future__ import annotations

from math import exp, inf

from policies.congestion import WINDOW

BOUNDS = (0.5, 1.0, 1.5, 2.0, 4.0, 8.0, 16.0)
"""Seconds that separate the groups in which those who can spare about as much are counted."""
_GROUPS = len(BOUNDS) + 1
_KEPT = 64
"""Engines from which on it is looked whether some are gone."""
_FADED = 1e-3
"""Requests: fewer are as good as none."""

Slacks = tuple[tuple[float, float], ...]
"""Per group, in ascending order, requests per second and what they can spare in seconds, added up.
"""
NOBODY: Slacks = ((0.0, 0.0),) * _GROUPS


def made_late(slacks: Slacks, seconds: float, queue: float = 0.0, spare: float = inf) -> float:
    """Requests that a prompt makes late which is not done with yet, as an expectation.

    Args:
        seconds: of its prefill.
        queue: seconds of prefill that go before it. Those who come and can spare less than it can
            go before it too, and wait for it only once it runs; the others wait for both.
        spare: seconds that the prompt itself can wait.
    """
    late = 0.0
    for rate, spares in slacks:
        before = queue * rate if spares > spare * rate else 0.0
        late += max(0.0, before + seconds * rate - spares) - max(0.0, before - spares)
    return late


class _Counts:
    """Fading sums, as of `at`."""

    __slots__ = ("at", "rates", "spares")

    def __init__(self) -> None:
        self.at = 0.0
        self.rates = [0.0] * _GROUPS
        self.spares = [0.0] * _GROUPS

    def add(self, now: float, spare: float) -> None:
        keep = exp(min(0.0, self.at - now) / WINDOW)
        self.rates = [keep * rate for rate in self.rates]
        self.spares = [keep * each for each in self.spares]
        self.at = max(self.at, now)
        group = sum(bound <= spare for bound in BOUNDS)
        self.rates[group] += 1.0
        self.spares[group] += spare


class Impatience:
    """Per engine, how much time the requests that came there of late could spare."""

    def __init__(self) -> None:
        self._counts: dict[str, _Counts] = {}
        self._most = _KEPT

    def add(self, id: str, now: float, spare: float) -> None:
        """Count a request that is sent to an engine.

        Args:
            spare: seconds that it could wait there and still have its first token in time.
        """
        counts = self._counts.get(id)
        if counts is None:
            if len(self._counts) >= self._most:
                self._drop_faded(now)
            counts = self._counts[id] = _Counts()
        counts.add(now, max(0.0, spare))

    def at(self, id: str, now: float) -> Slacks:
        """Of those who come to an engine."""
        counts = self._counts.get(id)
        if counts is None:
            return NOBODY
        scale = exp(min(0.0, counts.at - now) / WINDOW) / WINDOW
        return tuple(
            (scale * rate, scale * spare)
            for rate, spare in zip(counts.rates, counts.spares, strict=True)
        )

    def _drop_faded(self, now: float) -> None:
        self._counts = {
            id: counts
            for id, counts in self._counts.items()
            if sum(counts.rates) * exp(min(0.0, counts.at - now) / WINDOW) > _FADED
        }
        self._most = max(_KEPT, 2 * len(self._counts))
