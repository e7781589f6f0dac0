"""What another replica has told of, and this one will see for itself a little later."""

from __future__ import annotations

from gateway.types import Clock

SAME_EVENT = 15.0
"""Seconds for which what is seen here is what was told of. Three times the interval of probes; no
engine is up, down and up again within it."""


class Hearsay:
    """Events of one kind, by whom they befell."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heard: dict[str, float] = {}

    def heard(self, name: str) -> None:
        """Another replica has told of one."""
        now = self._clock()
        for old in [each for each, at in self._heard.items() if now - at >= SAME_EVENT]:
            del self._heard[old]
        self._heard[name] = now

    def is_news(self, name: str) -> bool:
        """Whether one that is seen here was not told of lately. Told once, it is old once."""
        heard = self._heard.pop(name, None)
        return heard is None or self._clock() - heard >= SAME_EVENT
