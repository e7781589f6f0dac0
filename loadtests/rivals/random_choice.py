"""A backend at random.

Rule. All are equally likely.
Source. A Kubernetes service; the `random` policy of SMG, Dynamo and AIBrix.
Simplified. Nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from gateway.types import Decision, Reason
from policies.base import Candidate, Params, RouteRequest


class RandomParams(Params, frozen=True):
    seed: int = 0
    """Of the draws."""


class RandomChoice:
    """Takes any backend."""

    name: ClassVar[str] = "random"
    late_binding: ClassVar[bool] = False
    params_type: ClassVar[type[Params]] = RandomParams

    def __init__(self, params: RandomParams) -> None:
        self._params = params
        self._random = Random(params.seed)

    @property
    def params(self) -> RandomParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        chosen = self._random.choice(candidates)
        return Decision(chosen.id, Reason.ONLY if len(candidates) == 1 else Reason.ROTATION)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        """Nothing later depends on it."""

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        """There is no score: one empty dict for each candidate."""
        return [{} for _ in candidates]
