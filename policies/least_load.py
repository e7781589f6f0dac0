"""The least busy backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gateway.types import Decision, Reason
from policies.base import Candidate, Params, RouteRequest
from policies.cost import outstanding_seconds, stream_seconds
from policies.rotation import Rotation


class LeastLoadParams(Params, frozen=True):
    """None."""


class LeastLoad:
    """Sends a request to the backend with the least outstanding work.

    What. Work is in seconds: uncached tokens before their first token over the prefill rate, plus
    what each request in flight adds to the decode steps of the others. Equally busy backends take
    turns.

    Inputs. Of each candidate: pending tokens, requests in flight, rates. Nothing of the request.

    Parameters. None.

    Example. A has one 20,000-token prefill pending (2 s), B has 30 streams (0.27 s): B is chosen,
    where counting connections would have chosen A.

    Trade-offs. Even load whatever the traffic, and no reuse beyond chance: for prompts that share
    nothing, or to compare with.
    """

    name: ClassVar[str] = "least_load"
    late_binding: ClassVar[bool] = True
    params_type: ClassVar[type[Params]] = LeastLoadParams

    def __init__(self, params: LeastLoadParams) -> None:
        self._params = params
        self._rotation = Rotation()

    @property
    def params(self) -> LeastLoadParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        loads = [outstanding_seconds(request, candidate) for candidate in candidates]
        lowest = min(loads)
        tied = [candidates[place] for place, load in enumerate(loads) if load == lowest]
        chosen = tied[0] if len(tied) == 1 else self._rotation.next(request.model, tied)
        reason = Reason.LOAD if len(candidates) > 1 else Reason.ONLY
        return Decision(chosen.id, reason, tuple(loads))

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        """Nothing later depends on it."""

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        return load_terms(request, candidates)


def load_terms(request: RouteRequest, candidates: Sequence[Candidate]) -> list[dict[str, float]]:
    """What makes up the load of each candidate, for the policies that compare it."""
    terms = []
    for candidate in candidates:
        queue = candidate.queue_seconds(request)
        streams = stream_seconds(candidate)
        terms.append({"queue": queue, "streams": streams, "total": queue + streams})
    return terms
