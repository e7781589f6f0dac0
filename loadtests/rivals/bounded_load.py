"""CHWBL: consistent hashing with bounded loads.

Rule. The prompt's beginning hashes to a place on a ring that holds each backend many times; from
there the first backend with requests + 1 <= load_factor * (total + 1) / backends, or the very first
if none has so few.
Source. substratusai/kubeai, internal/loadbalancer/balance_chwbl.go and model_types.go, as of autumn
2026; Mirrokni, Thorup and Zadimoghaddam (arXiv 1608.01350).
Simplified. The beginning is in blocks. Adapters are not part of the key.
Parameters. `BoundedLoad` has KubeAI's: 100 characters, which is one block here; 125 %; 256 places
for each backend. `BoundedLoadTwoBlocks` keys by two blocks, since a first block that all prompts
share makes one key of them all.
Known weakness. It does not know what is cached: what the bound sends on finds nothing there, and
the bound counts requests, whatever their length.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Annotated, ClassVar

import xxhash
from msgspec import Meta

from gateway.types import HASH_BYTES, Decision, Reason
from policies.base import Candidate, Params, RouteRequest

_hash = xxhash.xxh64_intdigest
Count = Annotated[int, Meta(ge=1)]


class BoundedLoadParams(Params, frozen=True):
    blocks: Count = 1
    """Leading blocks that are the key."""
    load_factor: Annotated[float, Meta(ge=1)] = 1.25
    """Requests that a backend may have, relative to the mean."""
    replication: Count = 256
    """Places of each backend on the ring."""


class BoundedLoadTwoBlocksParams(BoundedLoadParams, frozen=True):
    blocks: Count = 2


class BoundedLoad:
    """Takes the first backend on the ring, from the prompt's key on, that is within the bound."""

    name: ClassVar[str] = "bounded_load"
    late_binding: ClassVar[bool] = True
    params_type: ClassVar[type[Params]] = BoundedLoadParams

    def __init__(self, params: BoundedLoadParams) -> None:
        self._params = params
        self._ids: tuple[str, ...] = ()
        self._places: list[int] = []
        self._owners: list[int] = []

    @property
    def params(self) -> BoundedLoadParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        owners = self._from_key(request, candidates)
        most = self._most(candidates)
        home = owners[0]
        place = next((each for each in owners if candidates[each].in_flight + 1 <= most), home)
        if len(candidates) == 1:
            return Decision(candidates[place].id, Reason.ONLY)
        return Decision(candidates[place].id, Reason.HASH if place == home else Reason.SPILL)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        """Nothing later depends on it."""

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        ranks = {owner: rank for rank, owner in enumerate(self._from_key(request, candidates))}
        most = self._most(candidates)
        return [
            {"rank": ranks[place], "in_flight": candidate.in_flight, "most": most}
            for place, candidate in enumerate(candidates)
        ]

    def _most(self, candidates: Sequence[Candidate]) -> float:
        total = sum(candidate.in_flight for candidate in candidates)
        return self._params.load_factor * (total + 1) / len(candidates)

    def _from_key(self, request: RouteRequest, candidates: Sequence[Candidate]) -> list[int]:
        """Places in `candidates` in the order in which the ring has them from the key on."""
        self._build(tuple(candidate.id for candidate in candidates))
        key = request.chain[: self._params.blocks * HASH_BYTES]
        start = bisect_left(self._places, _hash(key))
        return list(dict.fromkeys(self._owners[start:] + self._owners[:start]))

    def _build(self, ids: tuple[str, ...]) -> None:
        if ids == self._ids:
            return
        ring = sorted(
            (_hash(f"{id}{replica}".encode()), owner)
            for owner, id in enumerate(ids)
            for replica in range(self._params.replication)
        )
        self._ids = ids
        self._places = [place for place, _ in ring]
        self._owners = [owner for _, owner in ring]


class BoundedLoadTwoBlocks(BoundedLoad):
    """The same, keyed by two blocks."""

    name: ClassVar[str] = "bounded_load_two_blocks"
    params_type: ClassVar[type[Params]] = BoundedLoadTwoBlocksParams
