"""The prefix-aware router of the vLLM production stack.

Rule. One at random of the backends that were sent the longest known beginning of the prompt; of
all, if none was sent any of it.
Source. vllm-project/production-stack, src/vllm_router/routers/routing_logic.py (PrefixAwareRouter)
and prefix/hashtrie.py, as of autumn 2026.
Simplified. Chunks are our blocks, not 128 characters. `--prefix-min-match-length`, below which the
lowest request rate decides, is left at its default of 0, which is to say out.
Parameters. seed.
Known weakness. No regard for load, and no eviction: a beginning that all prompts share sends all of
them to the backend that got the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar

from gateway.types import Decision, Reason
from loadtests.rivals.prefix_tree import PrefixTree
from policies.base import Candidate, Params, RouteRequest


class VllmPrefixAwareParams(Params, frozen=True):
    seed: int = 0
    """Of the draws."""


class VllmPrefixAware:
    """Follows the longest match, whatever waits there."""

    name: ClassVar[str] = "vllm_prefix_aware"
    late_binding: ClassVar[bool] = False
    params_type: ClassVar[type[Params]] = VllmPrefixAwareParams

    def __init__(self, params: VllmPrefixAwareParams) -> None:
        self._params = params
        self._random = Random(params.seed)
        self._tree = PrefixTree()

    @property
    def params(self) -> VllmPrefixAwareParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        ids = [candidate.id for candidate in candidates]
        _, owners = self._tree.match(request.chain, ids)
        chosen = self._random.choice(owners or ids)
        if len(ids) == 1:
            return Decision(chosen, Reason.ONLY)
        return Decision(chosen, Reason.PREFIX if owners else Reason.ROTATION)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        self._tree.insert(request.chain, candidate.id)

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        blocks, owners = self._tree.match(request.chain, [each.id for each in candidates])
        return [{"matched_blocks": blocks if each.id in owners else 0} for each in candidates]
