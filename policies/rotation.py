"""Taking turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from policies.base import Candidate

C = TypeVar("C", bound=Candidate)


class Rotation:
    """Next in the order of ids, so that it stays even while candidates come and go.

    Each model has its own turn: one turn for all would hand the requests of two models that
    alternate to the same backend each.
    """

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def next(self, model: str, candidates: Sequence[C]) -> C:
        """The candidate whose turn it is, which ends with that; there must be at least one."""
        last = self._last.get(model, "")
        following = None
        lowest = candidates[0]
        for candidate in candidates:
            id = candidate.id
            if id > last and (following is None or id < following.id):
                following = candidate
            if id < lowest.id:
                lowest = candidate
        chosen = lowest if following is None else following
        self._last[model] = chosen.id
        return chosen
