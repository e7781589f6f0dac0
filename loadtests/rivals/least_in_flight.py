"""Fewest requests in flight: the "least connections" of every proxy.

Rule. The backend with the fewest requests dispatched and not yet finished; equal ones take turns.
Source. nginx `least_conn`, Dynamo `least-loaded`, KubeAI `LeastLoad`, SMG `least_load`.
Simplified. Nothing.
Known weakness. A prompt of 100 tokens counts as much as one of 100,000, and nothing is reused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from loadtests.rivals.lowest_cost import LowestCost, NoParams
from policies.base import Candidate, Params, RouteRequest
from policies.rotation import Rotation


class LeastInFlight(LowestCost[NoParams]):
    """Takes the backend with the fewest requests in flight."""

    name: ClassVar[str] = "least_in_flight"
    params_type: ClassVar[type[Params]] = NoParams

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._rotation = Rotation()

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        return [{"cost": candidate.in_flight} for candidate in candidates]

    def pick(self, request: RouteRequest, tied: Sequence[Candidate]) -> Candidate:
        return self._rotation.next(request.model, tied)
