"""DualMap: two homes for each prefix.

Rule. Two independent hashes of the prompt's beginning give two backends. Of these the one that
holds more of the prompt is taken, unless its predicted time to first token misses the target: then
the less loaded one. Equal holdings also go to the less loaded.
Source. "DualMap" (ICLR 2026, arXiv 2602.06502, February 2026).
Simplified. The beginning that is hashed grows while more than 2/n of the recent requests share it,
which is as much as its two homes can carry of n backends; that is our reading of the paper's
adaptive length, over the last 1,000 requests here. Requests that wait in an engine cannot be moved
to their other home, so the rebalancing of hot spots is left out. Rendezvous hashing stands for the
dual ring, and the two homes are never the same backend.
Parameters. ttft_target, where the request brings no deadline; the one that it brings goes first.
Known weakness. Only two backends ever serve a prefix; and a prefix whose share of the traffic
passes the limit back and forth changes its homes each time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from math import inf
from random import Random
from typing import Annotated, ClassVar

from msgspec import Meta

from gateway.types import HASH_BYTES, Chain, Decision
from loadtests.rivals.lowest_cost import matched_tokens, reason
from loadtests.rivals.prefill import first_token_seconds
from policies.base import Candidate, Params, RouteRequest
from policies.rendezvous import highest

HOMES = 2


class DualMapParams(Params, frozen=True):
    ttft_target: Annotated[float, Meta(gt=0)] = 5.0
    """Seconds to the first token of a request without a deadline."""
    recent_requests: Annotated[int, Meta(ge=1)] = 1000
    """Requests over which the share of a prefix is taken."""
    seed: int = 0
    """Of the draws that give prompts without a block their homes."""


class DualMap:
    """Takes the better of two hashed homes."""

    name: ClassVar[str] = "dualmap"
    late_binding: ClassVar[bool] = True
    params_type: ClassVar[type[Params]] = DualMapParams

    def __init__(self, params: DualMapParams) -> None:
        self._params = params
        self._random = Random(params.seed)
        self._recent: deque[Chain] = deque()
        self._counts: Counter[bytes] = Counter()

    @property
    def params(self) -> DualMapParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        key = self._key(request.chain, len(candidates)) or self._random.randbytes(HASH_BYTES)
        homes = _homes(key, candidates)
        chosen = self._better(request, homes)
        return Decision(chosen.id, reason(request, candidates, chosen))

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        chain = request.chain
        self._recent.append(chain)
        self._counts.update(_blocks(chain))
        if len(self._recent) > self._params.recent_requests:
            for block in _blocks(self._recent.popleft()):
                self._counts[block] -= 1
                if not self._counts[block]:
                    del self._counts[block]

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        """A prompt without a block has no fixed homes, so none is marked."""
        key = self._key(request.chain, len(candidates))
        homes = _homes(key, candidates) if key else []
        return [
            {
                "home": candidate in homes,
                "matched": matched_tokens(request, candidate),
                "first_token": first_token_seconds(request, candidate),
                "load": candidate.queue_seconds(request),
            }
            for candidate in candidates
        ]

    def _better(self, request: RouteRequest, homes: Sequence[Candidate]) -> Candidate:
        def load(candidate: Candidate) -> tuple[float, int]:
            queue = candidate.queue_seconds(request)
            return queue, candidate.in_flight

        idler = min(homes, key=load)
        affine = max(homes, key=lambda candidate: matched_tokens(request, candidate))
        if matched_tokens(request, affine) <= matched_tokens(request, idler):
            return idler
        given = request.deadline - request.now
        target = given if given < inf else self._params.ttft_target
        return affine if first_token_seconds(request, affine) <= target else idler

    def _key(self, chain: Chain, backends: int) -> bytes:
        """Hash of the shortest beginning that two backends can carry, or of the whole prompt."""
        most = HOMES / backends * len(self._recent)
        for end in range(HASH_BYTES, len(chain), HASH_BYTES):
            block = chain[end - HASH_BYTES : end]
            if self._counts[block] <= most:
                return block
        return chain[-HASH_BYTES:]


def _homes(key: bytes, candidates: Sequence[Candidate]) -> list[Candidate]:
    first = highest(b"1" + key, candidates)
    others = [candidate for candidate in candidates if candidate is not first]
    return [first, highest(b"2" + key, others)] if others else [first]


def _blocks(chain: Chain) -> list[bytes]:
    return [chain[at : at + HASH_BYTES] for at in range(0, len(chain), HASH_BYTES)]
