"""The less busy of two."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from gateway.types import Decision, Reason
from policies.base import Candidate, Params, RouteRequest
from policies.cost import outstanding_seconds
from policies.least_load import load_terms


class PowerOfTwoParams(Params, frozen=True):
    seed: int | None = None
    """Makes the draws repeat from run to run; without one they differ."""


class PowerOfTwo:
    """Draws two backends at random and takes the less busy one.

    What. Load is measured as in `least_load`. Of two equally busy ones the first drawn wins.

    Inputs. Of each candidate: pending tokens, requests in flight, rates. Nothing of the request.

    Parameters. seed.

    Example. Of A (0.1 s of work), B (0.5 s) and C (2 s), C is never chosen, A in two of three
    draws, B in one.

    Trade-offs. Nearly as even as `least_load`, and it does not herd when several gateways decide
    on load that is a little out of date. No reuse beyond chance.
    """

    name: ClassVar[str] = "power_of_two"
    late_binding: ClassVar[bool] = True
    params_type: ClassVar[type[Params]] = PowerOfTwoParams

    def __init__(self, params: PowerOfTwoParams) -> None:
        self._params = params
        self._random = Random(params.seed)

    @property
    def params(self) -> PowerOfTwoParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        count = len(candidates)
        if count == 1:
            return Decision(candidates[0].id, Reason.ONLY)
        first = self._random.randrange(count)
        second = self._random.randrange(count - 1)
        if second >= first:
            second += 1
        one, other = candidates[first], candidates[second]
        less = outstanding_seconds(request, one) <= outstanding_seconds(request, other)
        chosen = one if less else other
        return Decision(chosen.id, Reason.LOAD)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        """Nothing later depends on it."""

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        return load_terms(request, candidates)
