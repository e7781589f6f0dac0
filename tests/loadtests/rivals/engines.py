"""Candidates with everything that a rival may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from policies.base import Policy, RouteRequest
from tests.policies.views import View


@dataclass(slots=True)
class Engine(View):
    """Its queue is what its pending tokens take."""

    attention_context: float = 30_000.0
    chunk_tokens: int = 2048

    def queue_seconds(self, request: RouteRequest) -> float:
        return self.pending_tokens / self.prefill_rate


def engines(ids: str, **facts: Any) -> list[Engine]:
    return [Engine(id, **facts) for id in ids]


def place(policy: Policy, request: RouteRequest, candidates: Sequence[Engine]) -> str:
    """Choose, and tell the policy that the request went there."""
    chosen = policy.choose(request, candidates).backend
    [candidate] = [candidate for candidate in candidates if candidate.id == chosen]
    policy.placed(request, candidate)
    return chosen
