"""The record of decisions: what each candidate would have cost, and why one was chosen.

A policy that is to be recorded is wrapped: its decisions then carry the terms of their scores, as
of the moment when they were made. Nothing is done for it while no record is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from gateway.http.context import RequestContext
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.ticket import Refused, Ticket
from gateway.telemetry.digest import digest
from gateway.telemetry.lines import MAX_MODEL, LineLog, micro
from gateway.types import Clock, Decision, Priority, Reason, WorkClass
from policies.base import Candidate, Params, Policy, RouteRequest

Gate = Callable[[], float | None]
"""The gate as it is set now."""


class CandidateCost(msgspec.Struct, frozen=True):
    """One candidate as the policy saw it.

    Attributes:
        score: what the policy compares, the lower the better; None with policies that do not
            score.
        open: whether its gate was.
        pending_seconds: prefill that it had and had not done.
        queue_seconds: that, and what was held for it and would have gone first.
        terms: what the score is made of.
    """

    backend: str
    score: float | None
    open: bool
    pending_seconds: float
    queue_seconds: float
    in_flight: int
    decoding: int
    matched_tokens: int
    terms: dict[str, float]

    @classmethod
    def of(
        cls,
        load: BackendLoad,
        request: RouteRequest,
        gate: float | None,
        score: float | None,
        terms: dict[str, float],
    ) -> CandidateCost:
        pending = load.pending_seconds(request.now)
        return cls(
            load.id,
            None if score is None else micro(score),
            gate is None or pending < gate,
            micro(pending),
            micro(load.queue_seconds(request)),
            load.in_flight,
            load.decoding,
            round(request.match.tokens.get(load.id, 0.0)),
            {name: micro(value) for name, value in terms.items()},
        )


class ExplainedDecision(Decision, frozen=True):
    candidates: tuple[CandidateCost, ...] = ()


class _Explained:
    def __init__(self, policy: Policy, gate: Gate) -> None:
        self._policy = policy
        self._gate = gate
        self.name = policy.name
        self.late_binding = policy.late_binding
        self.params_type = policy.params_type

    @property
    def params(self) -> Params:
        return self._policy.params

    def choose(self, request: RouteRequest, candidates: Sequence[BackendLoad]) -> Decision:
        terms = self._policy.explain(request, candidates)
        decision = self._policy.choose(request, candidates)
        scores = decision.scores
        gate = self._gate()
        costs = []
        for at, load in enumerate(candidates):
            made_of = terms[at] if terms else {}
            # Where there is one candidate, a policy need not add up what it costs.
            score = scores[at] if scores else made_of.get("total")
            costs.append(CandidateCost.of(load, request, gate, score, made_of))
        return ExplainedDecision(decision.backend, decision.reason, scores, tuple(costs))

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        self._policy.placed(request, candidate)

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        return self._policy.explain(request, candidates)


def explained(policy: Policy, gate: Gate) -> Policy:
    """The same policy, whose decisions are `ExplainedDecision`s."""
    # What a protocol says of a class cannot be said of a wrapper's instances.
    return cast(Policy, _Explained(policy, gate))


class DecisionLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line. Members that are not explained mean what they mean in `RequestRecord`.

    Attributes:
        time: of the request's arrival, seconds since 1970.
        deadline: seconds after that when its first token is due.
        decided: seconds after that when it was decided.
        prefill_seconds: what it brings to the backend.
        failed_at: backends that it was sent to before.
    """

    time: float
    id: str
    model: str
    tenant: str | None
    priority: Priority
    work_class: WorkClass
    prompt_tokens: int
    output_tokens: int
    deadline: float
    decided: float
    queue_seconds: float
    prefill_seconds: float
    backend: str | None
    reason: Reason | None
    spill: str | None
    refusal: str | None
    failed_at: tuple[str, ...]
    candidates: tuple[CandidateCost, ...]


class DecisionLog(LineLog[DecisionLine]):
    """A line for each decision, and for each request that was refused instead."""

    def __init__(self, path: str, clock: Clock) -> None:
        super().__init__("decision log", path, lambda line: line)
        self._clock = clock

    def note(self, context: RequestContext, ticket: Ticket, outcome: Lease | Refused) -> None:
        """Satisfies `gateway.http.admission.Decided`."""
        record, request = context.record, ticket.request
        lease = outcome if isinstance(outcome, Lease) else None
        refusal = outcome.reason.value if isinstance(outcome, Refused) else None
        decision = ticket.decision
        age = self._clock() - record.arrived
        self.write(
            DecisionLine(
                time=record.arrived_unix,
                id=record.id,
                model=record.model[:MAX_MODEL],
                tenant=digest(record.tenant),
                priority=request.priority,
                work_class=request.work_class,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                deadline=micro(request.deadline - record.arrived),
                decided=micro(age),
                queue_seconds=micro(age if lease is None else lease.queue_seconds),
                prefill_seconds=micro(ticket.seconds),
                backend=None if lease is None else lease.backend_id,
                reason=None if lease is None else lease.decision.reason,
                spill=record.spill,
                refusal=refusal,
                failed_at=ticket.avoid,
                candidates=decision.candidates if isinstance(decision, ExplainedDecision) else (),
            )
        )
