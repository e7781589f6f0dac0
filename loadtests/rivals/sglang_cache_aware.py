"""The cache-aware policy of the SGLang model gateway (SMG).

Rule. Imbalanced, that is max - min requests > balance_abs_threshold and max > balance_rel_threshold
* min: fewest requests. Otherwise, if more than cache_threshold of the prompt was sent somewhere
before: there. Otherwise fewest requests. What is chosen is noted in the tree in all cases.
Source. sgl-project/sglang, sgl-model-gateway/src/policies/cache_aware.rs and tree.rs, and
lightseek's SMG, as of autumn 2026. The header of that file still says that a miss goes to the
smallest tree; the code sends it to the fewest requests.
Simplified. The tree holds blocks, not characters; the share matched is in blocks. Of the several
backends that a prefix was sent to, the tree names the first without looking at load.
Parameters. `SglangCacheAware` has the defaults of the command line (0.3, 64, 1.5, which are also
those of the first releases), `SglangCacheAwareLibrary` those of the library (0.5, 32, 1.1). Both
have the command line's tree: 2**26 characters a backend, here 2**15 blocks (512 tokens of 4
characters), cut back every 120 s; the library's 10,000 characters would not hold one long prompt.
Known weakness. Requests are counted whatever their length, so the guard is blind to a few long
prompts; and a long shared system prompt below the threshold counts as a miss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from gateway.types import HASH_BYTES, Decision, Reason
from loadtests.rivals.prefix_tree import PrefixTree
from policies.base import Candidate, Params, RouteRequest

Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]


class SglangParams(Params, frozen=True):
    cache_threshold: Share = 0.3
    """Share of the prompt above which a match decides."""
    balance_abs_threshold: Count = 64
    """Requests by which the busiest backend must exceed the idlest to be imbalanced."""
    balance_rel_threshold: Annotated[float, Meta(ge=1)] = 1.5
    """And how many times as many it must have."""
    max_tree_blocks: Annotated[int, Meta(ge=1)] = 2**15
    """Blocks that are remembered of each backend."""
    eviction_interval_seconds: Annotated[float, Meta(gt=0)] = 120.0
    """How often the tree is cut back to that."""


class SglangLibraryParams(SglangParams, frozen=True):
    cache_threshold: Share = 0.5
    balance_abs_threshold: Count = 32
    balance_rel_threshold: Annotated[float, Meta(ge=1)] = 1.1


class SglangCacheAware:
    """Goes by its tree of past decisions while request counts are balanced."""

    name: ClassVar[str] = "sglang_cache_aware"
    late_binding: ClassVar[bool] = True
    params_type: ClassVar[type[Params]] = SglangParams

    def __init__(self, params: SglangParams) -> None:
        self._params = params
        self._trees: dict[str, PrefixTree] = {}
        self._chosen: Counter[str] = Counter()
        self._trimmed_at = 0.0

    @property
    def params(self) -> SglangParams:
        return self._params

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        share, owner = self._match(request)
        if self._imbalanced(candidates) or share <= self._params.cache_threshold:
            chosen, reason = self._fewest(candidates), Reason.LOAD
        else:
            matched = [candidate for candidate in candidates if candidate.id == owner]
            if not matched:
                # Cannot be used just now: the policy takes the first that can.
                return Decision(candidates[0].id, Reason.SPILL)
            chosen, reason = matched[0], Reason.PREFIX
        return Decision(chosen.id, reason if len(candidates) > 1 else Reason.ONLY)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        self._trees.setdefault(request.model, PrefixTree()).insert(request.chain, candidate.id)
        self._chosen[candidate.id] += 1
        if request.now - self._trimmed_at >= self._params.eviction_interval_seconds:
            self._trimmed_at = request.now
            for tree in self._trees.values():
                tree.trim(self._params.max_tree_blocks)

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        share, owner = self._match(request)
        imbalanced = self._imbalanced(candidates)
        return [
            {
                "in_flight": candidate.in_flight,
                "matched": share if candidate.id == owner else 0.0,
                "imbalanced": imbalanced,
            }
            for candidate in candidates
        ]

    def _match(self, request: RouteRequest) -> tuple[float, str]:
        """Share of the prompt that is in the tree, and the backend that the tree names for it."""
        tree = self._trees.get(request.model)
        blocks = len(request.chain) // HASH_BYTES
        if tree is None or not blocks:
            return 0.0, ""
        matched, owners = tree.match(request.chain)
        return matched / blocks, owners[0] if owners else ""

    def _imbalanced(self, candidates: Sequence[Candidate]) -> bool:
        loads = [candidate.in_flight for candidate in candidates]
        most, least = max(loads), min(loads)
        params = self._params
        return (
            most - least > params.balance_abs_threshold
            and most > params.balance_rel_threshold * least
        )

    def _fewest(self, candidates: Sequence[Candidate]) -> Candidate:
        return min(candidates, key=lambda each: (each.in_flight, self._chosen[each.id]))


class SglangCacheAwareLibrary(SglangCacheAware):
    """The same with the defaults of the library."""

    name: ClassVar[str] = "sglang_cache_aware_library"
    params_type: ClassVar[type[Params]] = SglangLibraryParams
