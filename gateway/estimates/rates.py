"""The learnt rates of all backends that run the same model, held against each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp
from statistics import median

from gateway.estimates.backend_rates import BackendRates
from gateway.estimates.shape import EngineShape

SILENT_SECONDS = 600.0
"""What is known fades by a factor of e in this time, so that a backend that was once found slow,
and gets no work since, is tried again."""


class Rates:
    """The rates of a pool of backends that run the same model.

    Args:
        shape: what a backend with factors of 1 would do.
    """

    def __init__(self, shape: EngineShape) -> None:
        self._shape = shape
        self._backends: dict[str, BackendRates] = {}
        self._refreshed: float | None = None

    def __getitem__(self, id: str) -> BackendRates:
        return self._backends[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._backends)

    def add(self, id: str, capacity_tokens: float) -> BackendRates:
        """Start to measure a backend.

        Raises:
            ValueError: it is measured already.
        """
        if id in self._backends:
            raise ValueError(f"backend {id!r} is measured already")
        rates = self._backends[id] = BackendRates(self._shape, capacity_tokens)
        return rates

    def remove(self, id: str) -> None:
        """
        Raises:
            KeyError: there is no such backend.
        """
        del self._backends[id]

    def refresh(self, now: float) -> None:
        """Let old knowledge fade and find the medians anew; to be called about once a second."""
        passed = 0.0 if self._refreshed is None else now - self._refreshed
        self._refreshed = now
        keep = exp(-passed / SILENT_SECONDS)
        known = [rates for rates in self._backends.values() if rates.is_known]
        prefill = _median(rates.prefill for rates in known)
        decode = _median(rates.decode for rates in known)
        for rates in self._backends.values():
            rates.fade(keep)
            rates.settle(prefill, decode)


def _median(factors: Iterable[float]) -> float:
    found = list(factors)
    return median(found) if found else 1.0
