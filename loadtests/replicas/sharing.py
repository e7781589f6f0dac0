"""When one replica hears what another has learnt."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, inf


@dataclass(slots=True, frozen=True)
class Sharing:
    """
    Attributes:
        lag: seconds from the publication of a record to its use elsewhere.
        every: seconds between two synchronisations, for those that wait for the next one; None
            where records are sent as they come.
    """

    name: str
    lag: float = 0.0
    every: float | None = None

    def due(self, now: float) -> float:
        """When others have what is published now; never, where nothing is shared."""
        if self.every is None:
            return now + self.lag
        return (floor(now / self.every) + 1) * self.every


SHARED = Sharing("shared, 10 ms", 0.01)
NOTHING = Sharing("nothing shared", inf)
"""The control: the same replicas with the feed cut."""
SHARED_ARMS = (
    SHARED,
    Sharing("shared, 50 ms", 0.05),
    Sharing("shared, 250 ms", 0.25),
)
"""Those that are held against one gateway."""
ARMS = (
    *SHARED_ARMS,
    Sharing("every 10 s", every=10.0),
    NOTHING,
)
