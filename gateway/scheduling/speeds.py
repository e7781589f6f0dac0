"""How fast each backend is: learnt from its leases, written into its ledger."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Protocol

from gateway.estimates.backend_rates import BackendRates
from gateway.estimates.rates import Rates
from gateway.estimates.shape import EngineShape
from gateway.scheduling.load import BackendLoad
from gateway.types import Clock

ALIKE = 1.2
"""Backends of one model whose speeds differ by less than this factor from the median are taken to
be equal. Estimates differ by a few percent even where engines do not, and then whichever looks
fastest would get everything that no backend has cached, for as long as it is idle."""


class Dispatched(Protocol):
    """A lease, of this replica or another: it must be hashable, and the same all the time."""

    @property
    def backend_id(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def uncached_tokens(self) -> int: ...


class Answered(Dispatched, Protocol):
    @property
    def output_tokens(self) -> int: ...


class Speeds:
    """Backends are measured by what all replicas do there: held against what one alone has sent, an
    engine that serves eight would seem eight times slower than it is.

    What is told of a lease at a backend that is not known (any more) is ignored.

    Args:
        loads: the ledgers, by backend id, into which rates are written.
    """

    def __init__(self, loads: Mapping[str, BackendLoad], clock: Clock) -> None:
        self._loads = loads
        self._clock = clock
        self._shape = EngineShape()
        self._models: dict[str, Rates] = {}
        self._model_of: dict[str, str] = {}
        self._rates: dict[str, BackendRates] = {}

    def backend_changed(self, id: str, model: str, capacity: float) -> None:
        """Hear of a backend, before requests go there, and of every change.

        Args:
            model: what it runs; it is held against others that run the same.
            capacity: of its KV cache, in the engine's tokens.
        """
        if self._model_of.get(id, model) != model:
            self.backend_removed(id)
        if id not in self._model_of:
            self._model_of[id] = model
            models = self._models
            self._rates[id] = models.setdefault(model, Rates(self._shape)).add(id, capacity)
        self._rates[id].capacity_tokens = capacity

    def backend_removed(self, id: str) -> None:
        """Nothing happens when it is not known."""
        model = self._model_of.pop(id, None)
        if model is not None:
            self._models[model].remove(id)
            del self._rates[id]

    def dispatched(self, lease: Dispatched, *, streamed: bool) -> None:
        """Args:
        streamed: its first token will be seen.
        """
        rates = self._rates.get(lease.backend_id)
        if rates is not None:
            rates.dispatched(
                lease,
                self._clock(),
                lease.prompt_tokens,
                lease.uncached_tokens,
                streamed=streamed,
            )

    def first_token(self, lease: Dispatched) -> None:
        rates = self._rates.get(lease.backend_id)
        if rates is not None:
            rates.first_token(lease, self._clock())

    def finished(self, lease: Answered) -> None:
        """Its last token has come; `lease.output_tokens` tells how many there were."""
        rates = self._rates.get(lease.backend_id)
        if rates is not None:
            rates.finished(lease, self._clock(), lease.output_tokens)

    def dropped(self, lease: Dispatched) -> None:
        """It was broken off, however far it had come."""
        rates = self._rates.get(lease.backend_id)
        if rates is not None:
            rates.dropped(lease, self._clock())

    def refresh(self) -> None:
        """Write what was learnt into the ledgers; to be called a few times a second."""
        now = self._clock()
        for rates in self._models.values():
            rates.refresh(now)
            self._write(rates)

    def _write(self, rates: Rates) -> None:
        """Write a backend's own speeds where they are known and stand out, else the median."""
        known = [rates[id] for id in rates if rates[id].is_known]
        prefill = median(each.prefill for each in known) if known else 1.0
        decode = median(each.decode for each in known) if known else 1.0
        for id in rates:
            own, load = rates[id], self._loads[id]
            shape = self._shape.slower(
                _standing_out(own.prefill, prefill) if own.is_known else prefill,
                _standing_out(own.decode, decode) if own.is_known else decode,
            )
            load.prefill_rate = shape.prefill_rate
            load.usual_rate = self._shape.prefill_rate / prefill
            load.step_seconds = shape.step_seconds
            load.stream_seconds = shape.stream_seconds
            load.context_seconds = shape.context_seconds


def _standing_out(factor: float, usual: float) -> float:
    return usual if 1 / ALIKE < factor / usual < ALIKE else factor
