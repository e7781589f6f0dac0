"""How long a backend may take over a request, by the request's model and class."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import msgspec

from gateway.config import ModelTimeouts, Timeouts
from gateway.types import WorkClass


class TimeLimits(NamedTuple):
    """Seconds: to connect, until the first byte of the answer, between two reads of it, and from
    the request's arrival to the answer's end; None for no end."""

    connect: float
    first_byte: float
    idle: float
    total: float | None


NO_TIME_LIMITS = TimeLimits(inf, inf, inf, None)


class TimeLimitTable:
    """All limits, worked out once."""

    __slots__ = ("_common", "_models")

    def __init__(self, timeouts: Timeouts) -> None:
        self._common = _by_class(timeouts)
        self._models = {
            model: _by_class(_changed(timeouts, changes))
            for model, changes in timeouts.models.items()
        }

    def of(self, model: str, work_class: WorkClass) -> TimeLimits:
        return self._models.get(model, self._common)[work_class]


def _by_class(timeouts: Timeouts) -> dict[WorkClass, TimeLimits]:
    decode = TimeLimits(timeouts.connect, timeouts.first_byte, timeouts.idle, timeouts.total)
    prefill = decode._replace(first_byte=timeouts.prefill_first_byte or timeouts.first_byte)
    return {WorkClass.DECODE: decode, WorkClass.PREFILL: prefill}


def _changed(timeouts: Timeouts, changes: ModelTimeouts) -> Timeouts:
    given = {
        name: value for name, value in msgspec.structs.asdict(changes).items() if value is not None
    }
    if "first_byte" in given and "prefill_first_byte" not in given:
        given["prefill_first_byte"] = None  # one that is set for all models is not meant for this
    return msgspec.structs.replace(timeouts, **given)
