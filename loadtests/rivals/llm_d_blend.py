"""llm-d's weighted scorers: the configuration compiled into its endpoint picker.

Rule. The highest weighted sum of three scores, each 0 to 1: the share of the prompt that is cached;
(most - waiting) / (most - fewest) over the candidates, 1 where all are equal; and the free share of
the KV cache. Equal sums draw.
Source. llm-d/llm-d-router, pkg/epp (v0.10, August 2026): prefix-cache-scorer, queue-scorer,
kv-cache-utilization-scorer and loadDefaultConfig; gateway-api-inference-extension has the same.
Simplified. What backends hold is our match; theirs is a table of blocks that the picker keeps, or
engine events. The engine's waiting queue, which it scrapes every 50 ms, is the requests before
their first token. KV cache in use is the prompts in flight, waiting ones included.
Parameters. Weights 3, 2, 2.
Known weakness. Any difference in the queue, 1 against 0 like 60 against 0, is worth the full
queue weight; and no term grows with the length of what waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from loadtests.rivals.lowest_cost import Drawn, Seeded, matched_share
from policies.base import Candidate, Params, RouteRequest

Weight = Annotated[float, Meta(ge=0)]


class LlmdBlendParams(Seeded, frozen=True):
    prefix_weight: Weight = 3.0
    queue_weight: Weight = 2.0
    kv_cache_weight: Weight = 2.0


class LlmdBlend(Drawn[LlmdBlendParams]):
    """Adds up scores for reuse, queue and memory."""

    name: ClassVar[str] = "llm_d_blend"
    params_type: ClassVar[type[Params]] = LlmdBlendParams

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        params = self._params
        waiting = [candidate.in_flight - candidate.decoding for candidate in candidates]
        most, fewest = max(waiting), min(waiting)
        terms = []
        for candidate, length in zip(candidates, waiting, strict=True):
            prefix = matched_share(request, candidate)
            queue = (most - length) / (most - fewest) if most > fewest else 1.0
            free = max(0.0, 1.0 - candidate.context_tokens / candidate.capacity_tokens)
            score = (
                params.prefix_weight * prefix
                + params.queue_weight * queue
                + params.kv_cache_weight * free
            )
            terms.append({"prefix": prefix, "queue": queue, "kv_cache": free, "cost": -score})
        return terms
