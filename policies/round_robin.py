"""Each backend in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gateway.types import Decision, Reason
from policies.base import Candidate, Params, RouteRequest
from policies.rotation import Rotation


class RoundRobinParams(Params, frozen=True):
    """None."""


class RoundRobin:
    """Hands requests out in turn.

    What. The next backend in the order of ids, per model. Backends without room are passed over.

    Inputs. None.

    Parameters. None.

    Example. A, B, C, A, B, C; when B fills up: A, C, A, C.

    Trade-offs. The baseline to compare with: equal counts, not equal work, and each turn of a
    conversation lands elsewhere.
    """

    name: ClassVar[str] = "round_robin"
    late_binding: ClassVar[bool] = False
    params_type: ClassVar[type[Params]] = RoundRobinParams

    def __init__(self, params: RoundRobinParams) -> None:
        self._params = params
        self._rotation = Rotation()

    @property
    def params(self) -> RoundRobinParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        chosen = self._rotation.next(request.model, candidates)
        return Decision(chosen.id, Reason.ROTATION if len(candidates) > 1 else Reason.ONLY)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        """Nothing later depends on it."""

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        """There is no score: one empty dict for each candidate."""
        return [{} for _ in candidates]
