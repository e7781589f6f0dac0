"""What happens to engines in mid-run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    CRASH = "crash"
    """Gone at once, with its cache and all that it had begun."""
    DRAIN = "drain"
    """Gets no new requests, and finishes those it has."""
    JOIN = "join"
    """Comes, or comes back, with an empty cache. An engine that joins first was not there at the
    begin."""
    FLUSH = "flush"
    """Loses what it has cached for later, and tells nobody."""


@dataclass(slots=True, frozen=True)
class Incident:
    """
    Attributes:
        seconds: after the begin.
    """

    kind: Kind
    engine: int
    seconds: float
