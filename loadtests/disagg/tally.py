"""What was handed over in one run."""

from __future__ import annotations

from gateway.disagg.decider import Placement
from loadtests.sim.handover import Handover


class Tally:
    """
    Attributes:
        requests: that were placed.
        remote: of those, on two engines.
        tokens: whose KV cache was moved.
        lost: handovers whose lease was over before anybody fetched anything.
    """

    def __init__(self) -> None:
        self.requests = self.remote = self.tokens = self.lost = 0

    def placed(self, placement: Placement | None) -> None:
        self.requests += 1
        self.remote += placement is not None and placement.is_remote

    def moved(self, handover: Handover) -> None:
        self.tokens += handover.moved
        self.lost += handover.lost
