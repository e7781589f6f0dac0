"""What rules that score each backend by itself and take the best have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random
from typing import ClassVar, Generic, TypeVar

from gateway.types import Decision, Reason
from policies.base import Candidate, Params, RouteRequest
from policies.rotation import Rotation

P = TypeVar("P", bound=Params)


class NoParams(Params, frozen=True):
    """None."""


class LowestCost(ABC, Generic[P]):
    """Takes the backend whose cost is lowest; rules that look for the highest score negate it."""

    name: ClassVar[str]
    late_binding: ClassVar[bool] = True
    params_type: ClassVar[type[Params]]

    def __init__(self, params: P) -> None:
        self._params = params

    @property
    def params(self) -> P:
        return self._params

    @abstractmethod
    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        """The terms of each candidate's cost, and their sum or product as "cost"."""

    def pick(self, request: RouteRequest, tied: Sequence[Candidate]) -> Candidate:
        """The one to take of several that cost the same: the first, if the rule does not say."""
        return tied[0]

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        costs = [terms["cost"] for terms in self.explain(request, candidates)]
        chosen = self.pick(request, cheapest(candidates, costs))
        return Decision(chosen.id, reason(request, candidates, chosen), tuple(costs))

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        """Nothing later depends on it, if the rule does not say so."""


class InTurn(LowestCost[NoParams]):
    """Of those that cost the same the next in turn."""

    params_type: ClassVar[type[Params]] = NoParams

    def __init__(self, params: NoParams) -> None:
        super().__init__(params)
        self._rotation = Rotation()

    def pick(self, request: RouteRequest, tied: Sequence[Candidate]) -> Candidate:
        return self._rotation.next(request.model, tied)


class Seeded(Params, frozen=True):
    seed: int = 0
    """Of the draws."""


S = TypeVar("S", bound=Seeded)


class Drawn(LowestCost[S]):
    """Of those that cost the same any."""

    def __init__(self, params: S) -> None:
        super().__init__(params)
        self._random = Random(params.seed)

    def pick(self, request: RouteRequest, tied: Sequence[Candidate]) -> Candidate:
        return self._random.choice(tied)


def cheapest(candidates: Sequence[Candidate], costs: Sequence[float]) -> list[Candidate]:
    """The candidates of the lowest cost, in their order."""
    lowest = min(costs)
    return [candidates[place] for place, cost in enumerate(costs) if cost == lowest]


def matched_tokens(request: RouteRequest, candidate: Candidate) -> float:
    return min(request.match.tokens.get(candidate.id, 0.0), request.prompt_tokens)


def uncached_tokens(request: RouteRequest, candidate: Candidate) -> float:
    """Prompt tokens that the candidate would have to prefill."""
    return request.prompt_tokens - matched_tokens(request, candidate)


def matched_share(request: RouteRequest, candidate: Candidate) -> float:
    """Share of the prompt that the candidate holds, 0 to 1."""
    prompt_tokens = request.prompt_tokens
    return matched_tokens(request, candidate) / prompt_tokens if prompt_tokens else 0.0


def reason(request: RouteRequest, candidates: Sequence[Candidate], chosen: Candidate) -> Reason:
    """Whether reuse or load explains the choice, for the decision's label."""
    if len(candidates) == 1:
        return Reason.ONLY
    held = request.match.blocks
    if not held:
        return Reason.LOAD
    return Reason.PREFIX if held.get(chosen.id, 0) >= max(held.values()) else Reason.SPILL
