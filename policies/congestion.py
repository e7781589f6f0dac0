"""How much a second of work costs those who come after it."""

from __future__ import annotations

from math import exp

WINDOW = 60.0
"""Seconds over which dispatched work is averaged."""
_KEPT = 256
"""Sums below which none is dropped."""
_FADED = 1e-6
_MAX_UTILISATION = 0.98
_MIN_AGE = 10.0
"""Seconds before which too little has been seen to say how busy a pool is."""


class Decayed:
    """A sum whose parts fade with time, by a factor of e a minute."""

    __slots__ = ("_at", "_sum")

    def __init__(self) -> None:
        self._sum = 0.0
        self._at = 0.0

    def add(self, now: float, amount: float) -> None:
        self._sum = self.at(now) + amount

    def at(self, now: float) -> float:
        """The sum as of now."""
        elapsed = now - self._at
        if elapsed > 0.0:
            self._sum *= exp(-elapsed / WINDOW)
            self._at = now
        return self._sum


class DecayedSums:
    """One for each of several backends. Those of backends that are gone fade, and are dropped."""

    __slots__ = ("_most", "_sums")

    def __init__(self) -> None:
        self._sums: dict[str, Decayed] = {}
        self._most = _KEPT

    def add(self, id: str, now: float, value: float) -> None:
        sum_ = self._sums.get(id)
        if sum_ is None:
            if len(self._sums) >= self._most:
                self._drop_faded(now)
            sum_ = self._sums[id] = Decayed()
        sum_.add(now, value)

    def at(self, id: str, now: float) -> float:
        """The sum of one as of now."""
        sum_ = self._sums.get(id)
        return 0.0 if sum_ is None else sum_.at(now)

    def _drop_faded(self, now: float) -> None:
        self._sums = {id: sum_ for id, sum_ in self._sums.items() if sum_.at(now) > _FADED}
        self._most = max(_KEPT, 2 * len(self._sums))


class Congestion:
    """The price of a second of prefill work, which grows with how busy the pool is.

    In a queue that is busy a share rho of the time, one second of added work delays later arrivals
    by about rho / (1 - rho) seconds. A policy that ignores this spills sessions to idle backends
    when load is high and so destroys the reuse that kept the load bearable.
    """

    __slots__ = ("_since", "_work")

    def __init__(self) -> None:
        self._work = Decayed()
        self._since: float | None = None

    def add(self, now: float, seconds: float) -> None:
        """Count work that is dispatched now."""
        if self._since is None:
            self._since = now
        self._work.add(now, seconds)

    def utilisation(self, now: float, backends: int) -> float:
        """Share of their time that the backends spend on prefill, up to 0.98."""
        if self._since is None:
            return 0.0
        # What a sum that fades like this comes to after `age` seconds of one unit a second; the
        # whole window only in the long run, and a gateway that has just started is no less busy.
        age = max(now - self._since, _MIN_AGE)
        rho = self._work.at(now) / (WINDOW * (1.0 - exp(-age / WINDOW)) * backends)
        return rho if rho < _MAX_UTILISATION else _MAX_UTILISATION

    def price(self, now: float, backends: int, mean_queue: float) -> float:
        """Args:
        mean_queue: seconds of pending prefill work at a backend, on average.
        """
        rho = self.utilisation(now, backends)
        return 4.0 * rho / (1.0 - rho) + 0.5 * mean_queue
