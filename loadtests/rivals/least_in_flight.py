"""Fewest requests in flight: the "least connections" of every proxy.

Rule. The backend with the fewest requests dispatched and not yet finished; equal ones take turns.
Source. nginx `least_conn`, Dynamo `least-loaded`, KubeAI `LeastLoad`, SMG `least_load`.
Simplified. Nothing.
Known weakness. A prompt of 100 tokens counts as much as one of 100,000, and nothing is reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from loadtests.rivals.lowest_cost import InTurn
from policies.base import Candidate, RouteRequest


class LeastInFlight(InTurn):
    """Takes the backend with the fewest requests in flight."""

    name: ClassVar[str] = "least_in_flight"

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        return [{"cost": candidate.in_flight} for candidate in candidates]
