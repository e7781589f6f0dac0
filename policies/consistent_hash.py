"""Where the prompt's beginning hashes to, within a bound of load."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar

from msgspec import Meta

from gateway.types import HASH_BYTES, Chain, Decision, Reason
from policies.base import Candidate, Params, RouteRequest
from policies.cost import outstanding_seconds
from policies.least_load import LeastLoad, LeastLoadParams
from policies.rendezvous import weight


class ConsistentHashParams(Params, frozen=True):
    blocks: Annotated[int, Meta(ge=1, le=4096)] = 16
    """How many leading blocks are the key; shorter prompts are keyed by their last block."""
    bound: Annotated[float, Meta(ge=1, le=100)] = 1.25
    """Most requests in flight at a backend, relative to the mean."""


class ConsistentHash:
    """Sends prompts with the same beginning to the same backend, unless it has too many.

    What. The key is the prompt's block at a fixed depth. Each backend gets a weight from the hash
    of key and id; the highest weight wins among the backends that stay within `bound` times the
    mean number of requests in flight. Prompts without a whole block go by load.

    Inputs. The prompt's chain; of each candidate its id and requests in flight.

    Parameters. blocks (the default of 16 is 2 kB), bound.

    Example. Four backends with 10 requests each: the next may have at most ceil(1.25 * 41 / 4) =
    13. A prompt that hashes to a backend with 13 goes to its second choice.

    Trade-offs. No state to keep or to share, and only 1/n of the keys move when the n-th backend
    comes. But it cannot see what is cached: prompts that part after the key's depth share one
    home whether they share more or not, a beginning that all share is a hot spot until the bound
    cuts in, and what the bound displaces finds nothing cached.
    """

    name: ClassVar[str] = "consistent_hash"
    late_binding: ClassVar[bool] = False
    params_type: ClassVar[type[Params]] = ConsistentHashParams

    def __init__(self, params: ConsistentHashParams) -> None:
        self._params = params
        self._keyless = LeastLoad(LeastLoadParams())

    @property
    def params(self) -> ConsistentHashParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        key = self._key(request.chain)
        if not key or len(candidates) == 1:
            return self._keyless.choose(request, candidates)
        most = self._most(candidates)
        home, home_weight = candidates[0], -1
        within, within_weight = home, -1
        for candidate in candidates:
            candidate_weight = weight(key, candidate.id)
            if candidate_weight > home_weight:
                home, home_weight = candidate, candidate_weight
            if candidate_weight > within_weight and candidate.in_flight < most:
                within, within_weight = candidate, candidate_weight
        return Decision(within.id, Reason.HASH if within is home else Reason.SPILL)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        """Nothing later depends on it."""

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        key = self._key(request.chain)
        most = self._most(candidates)
        return [
            {
                "weight": weight(key, candidate.id) / 2**64,
                "in_flight": candidate.in_flight,
                "most": most,
                "load": outstanding_seconds(request, candidate),
            }
            for candidate in candidates
        ]

    def _key(self, chain: Chain) -> bytes:
        return chain[: self._params.blocks * HASH_BYTES][-HASH_BYTES:]

    def _most(self, candidates: Sequence[Candidate]) -> int:
        """Requests in flight that a backend may have, the new one included."""
        total = 1 + sum(candidate.in_flight for candidate in candidates)
        return ceil(self._params.bound * total / len(candidates))
