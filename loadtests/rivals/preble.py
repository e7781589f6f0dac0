"""Preble's E2: exploit and explore.

Rule. Exploit when more of the prompt is cached than not: the least loaded of the backends that hold
most of it. Else explore: the lowest sum of load, what would be evicted to make room, and the
prompt's own prefill. Load is that of a window of three minutes: prefill of what was not cached, and
the decode of the requests in flight. When the heaviest backend has more than rebalance_threshold
times the load of the lightest, what would exploit the heaviest goes to the lightest.
Source. "Preble" (ICLR 2025) and WukLab/preble, global_scheduler_with_time.py of May 2024, from
which window, threshold and the 50 requests before the first rebalancing are.
Simplified. Prefixes are counted one request at a time, not by the tree's nodes. Prefill is
predicted by the engine's true shape, time per output token by its step as it is. Copying a hot
prefix when its time to first token doubles needs feedback that a policy does not get, so a prefix
is copied only by rebalancing. The order inside the engine (by share cached) is left out.
Parameters. As above. The eviction term is on, as in the paper; the repository has it off.
Known weakness. A window of three minutes lags behind a burst, and does not see what waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from gateway.types import HASH_BYTES, Decision
from loadtests.rivals.lowest_cost import (
    cheapest,
    matched_share,
    matched_tokens,
    reason,
    uncached_tokens,
)
from loadtests.rivals.recent_use import RecentUse
from policies.base import Candidate, Params, RouteRequest
from policies.cost import own_prefill_seconds

REQUESTS_BEFORE_REBALANCING = 50


class PrebleParams(Params, frozen=True):
    window_seconds: Annotated[float, Meta(gt=0)] = 180.0
    """Over which load is counted."""
    rebalance_threshold: Annotated[float, Meta(ge=1)] = 1.5
    """Times the lightest load that the heaviest may be."""


class Preble:
    """Reuses when most of the prompt is cached, and otherwise spreads load."""

    name: ClassVar[str] = "preble"
    late_binding: ClassVar[bool] = True
    params_type: ClassVar[type[Params]] = PrebleParams

    def __init__(self, params: PrebleParams) -> None:
        self._params = params
        self._uses: dict[str, RecentUse] = {}
        self._requests = 0

    @property
    def params(self) -> PrebleParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        loads = [self._load(request, candidate) for candidate in candidates]
        chosen = self._exploit(request, candidates, loads) or self._explore(
            request, candidates, loads
        )
        return Decision(chosen.id, reason(request, candidates, chosen))

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        self._requests += 1
        self._use(candidate).add(
            request.now,
            request.chain,
            own_prefill_seconds(request, candidate),
            request.prompt_tokens,
            uncached_tokens(request, candidate),
        )

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        terms = []
        for candidate in candidates:
            load = self._load(request, candidate)
            eviction = self._eviction(request, candidate)
            own = own_prefill_seconds(request, candidate)
            terms.append(
                {
                    "matched": matched_share(request, candidate),
                    "load": load,
                    "eviction": eviction,
                    "prefill": own,
                    "cost": load + eviction + own,
                }
            )
        return terms

    def _exploit(
        self, request: RouteRequest, candidates: Sequence[Candidate], loads: Sequence[float]
    ) -> Candidate | None:
        """None when less than half of the prompt is cached anywhere."""
        held = [matched_tokens(request, candidate) for candidate in candidates]
        most = max(held)
        if most <= request.prompt_tokens - most:
            return None
        load, place = min((load, place) for place, load in enumerate(loads) if held[place] == most)
        lightest = min(loads)
        if (
            self._requests >= REQUESTS_BEFORE_REBALANCING
            and load == max(loads)
            and load > self._params.rebalance_threshold * lightest
        ):
            place = loads.index(lightest)
        return candidates[place]

    def _explore(
        self, request: RouteRequest, candidates: Sequence[Candidate], loads: Sequence[float]
    ) -> Candidate:
        costs = [
            load + self._eviction(request, candidate) + own_prefill_seconds(request, candidate)
            for candidate, load in zip(candidates, loads, strict=True)
        ]
        return cheapest(candidates, costs)[0]

    def _load(self, request: RouteRequest, candidate: Candidate) -> float:
        step = (
            candidate.step_seconds
            + candidate.stream_seconds * candidate.in_flight
            + candidate.context_seconds * candidate.context_tokens
        )
        decode = candidate.in_flight * request.output_tokens * step
        return self._use(candidate).prefill_seconds(request.now) + decode

    def _eviction(self, request: RouteRequest, candidate: Candidate) -> float:
        """Prefill that would be done again for what has to go, if it goes on being asked for."""
        blocks = len(request.chain) // HASH_BYTES
        if not blocks:
            return 0.0
        block_tokens = request.prompt_tokens / blocks
        use = self._use(candidate)
        uses = use.victims(
            request.now,
            new_blocks=uncached_tokens(request, candidate) / block_tokens,
            capacity=candidate.capacity_tokens / block_tokens,
        )
        return use.miss_rate(request.now) * uses * block_tokens / candidate.prefill_rate

    def _use(self, candidate: Candidate) -> RecentUse:
        use = self._uses.get(candidate.id)
        if use is None:
            use = self._uses[candidate.id] = RecentUse(self._params.window_seconds)
        return use
