"""What would be done with a request now, and why, in numbers and in words."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from xxhash import xxh3_64_hexdigest

from gateway.admin.views import (
    CandidateView,
    DecisionView,
    Explanation,
    HandoverView,
    MatchView,
)
from gateway.config import ConfigError
from gateway.http.dialects.registry import dialect_for
from gateway.http.errors import RequestError
from gateway.scheduling.hold import Hold
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.telemetry.digest import digest
from gateway.types import HASH_BYTES, Decision, Reason
from policies.base import RouteRequest
from policies.cost import own_prefill_seconds

if TYPE_CHECKING:
    from gateway.app import Gateway

WORDS = {
    Reason.PREFIX: "it holds most of the prompt, and no other is cheaper",
    Reason.SPILL: "another one holds more of the prompt, but is full or would take longer even so",
    Reason.COPY: "waiting where the prompt's beginning is has cost as much as one more copy",
    Reason.LOAD: "no backend holds anything worth reusing, and it is the least loaded",
    Reason.ROTATION: "it is its turn",
    Reason.HASH: "the hash of the prompt's beginning points to it",
    Reason.SESSION: "the session's hash points to it",
    Reason.SESSIONLESS: "the request names no session, and it is the least loaded",
    Reason.ONLY: "no other backend has room, or what the request goes on from",
}
HELD = {
    Hold.GATE: "Enough prefill is pending there: the request would be held until less is.",
    Hold.MEMORY: "Its KV cache has no room: the request would be held until others have ended.",
    Hold.STREAMS: "Streams there cannot bear its prefill yet: the request would be held for them.",
}
FULL = "Every backend of this model is at its limit: the request would wait."


def explain(
    gateway: Gateway, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> Explanation:
    """Nothing is sent, booked or counted.

    Raises:
        ConfigError: the request cannot be understood.
    """
    pairs = [(b"content-type", b"application/json")] + [
        (name.lower().encode("latin-1", "replace"), value.encode("latin-1", "replace"))
        for name, value in headers.items()
    ]
    dialect = dialect_for(method, path)
    try:
        read = gateway.ingress.headers(pairs)
        identity = gateway.ingress.would_be(pairs, read)
        facts = gateway.facts.read(dialect, read, body, identity)
    except RequestError as error:
        raise ConfigError(f"body: {error}", field=error.param) from None
    prompt, request = facts.prompt, facts.request
    candidates: list[CandidateView] = []
    decision: DecisionView | None = None
    deadline: float | None = None
    refusal: str | None = None
    try:
        pool = gateway.proxy.pool(prompt.model)
        owner = None
        if dialect.stores:
            owner = gateway.proxy.owner(path, prompt.continues, pool, identity)
    except RequestError as error:
        refusal = str(error)
    else:
        alone = gateway.disagg.preview.why_alone(method, path, body, pool)
        request = gateway.facts.appraise(facts, pool)
        request = msgspec.structs.replace(request, alone=alone is not None)
        deadline = request.deadline - request.now
        candidates, decision = _considered(gateway, pool, request, owner)
        if decision is not None:
            foreseen = gateway.disagg.preview.foresee(request, pool, decision.backend, alone)
            decision = msgspec.structs.replace(
                decision, handover=None if foreseen is None else HandoverView(*foreseen)
            )
        else:
            refusal = FULL
    return Explanation(
        dialect=dialect.name,
        model=prompt.model,
        namespace=xxh3_64_hexdigest(
            gateway.facts.namespace(prompt, gateway.fleet.aliases.main(prompt.model))
        ),
        key_bytes=facts.key_bytes,
        blocks=len(request.chain) // HASH_BYTES,
        prompt_tokens=request.prompt_tokens,
        output_tokens=request.output_tokens,
        work_class=request.work_class,
        priority=request.priority,
        tenant=digest(request.tenant),
        deadline=deadline,
        match=MatchView(blocks=dict(request.match.blocks), tokens=dict(request.match.tokens)),
        candidates=candidates,
        decision=decision,
        refusal=refusal,
    )


def _considered(
    gateway: Gateway, pool: Pool, request: RouteRequest, owner: str | None
) -> tuple[list[CandidateView], DecisionView | None]:
    """All backends of the pool, those with room first, and what the policy would say.

    Args:
        owner: the one that it must go to, None for any.
    """
    roomy = [load for load in pool.candidates(request) if owner in (None, load.id)]
    views: list[CandidateView] = []
    decision: DecisionView | None = None
    held = pool.snapshot().backends
    if roomy:
        # A copy: policies take note of what they decide, and this decides nothing.
        policy = copy.deepcopy(gateway.pools.policy)
        terms = policy.explain(request, roomy)
        choice = policy.choose(request, roomy)
        scores = choice.scores
        for at, load in enumerate(roomy):
            score = scores[at] if scores else None
            views.append(_candidate(pool, load, request, held, score, terms[at] if terms else {}))
        decision = _decision(pool, request, choice, roomy)
    full = [load for load in pool.backends if load not in roomy]
    views += (_candidate(pool, load, request, held, None, None) for load in full)
    return views, decision


def _candidate(
    pool: Pool,
    load: BackendLoad,
    request: RouteRequest,
    held: Mapping[str, int],
    score: float | None,
    terms: dict[str, float] | None,
) -> CandidateView:
    return CandidateView(
        backend=load.id,
        room=terms is not None,
        hold=pool.hold(load, request),
        held=held[load.id],
        queue_seconds=load.queue_seconds(request),
        prefill_seconds=own_prefill_seconds(request, load),
        score=score,
        terms=terms or {},
    )


def _decision(
    pool: Pool, request: RouteRequest, choice: Decision, roomy: list[BackendLoad]
) -> DecisionView:
    chosen = next(load for load in roomy if load.id == choice.backend)
    hold = pool.hold(chosen, request)
    why = f"{choice.backend}: {WORDS[choice.reason]}."
    if hold is not None:
        why += f" {HELD[hold]}"
    return DecisionView(
        backend=choice.backend, reason=choice.reason, why=why, waits=hold is not None
    )
