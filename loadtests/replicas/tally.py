"""What is counted while several replicas are at work."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gateway.shared.records import Kind


@dataclass(slots=True)
class Tally:
    """
    Attributes:
        records, bytes: that were published, by kind.
        highest, mean: requests in flight at the engine that had most, and on average, both summed
            over all looks.
    """

    records: Counter[Kind] = field(default_factory=Counter)
    bytes: Counter[Kind] = field(default_factory=Counter)
    highest: int = 0
    mean: float = 0.0

    def look(self, in_flight: list[int]) -> None:
        """
        Args:
            in_flight: requests at each engine.
        """
        self.highest += max(in_flight)
        self.mean += sum(in_flight) / len(in_flight)
