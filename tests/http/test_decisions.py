from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.config import Scheduling
from gateway.http.client import AsgiClient
from gateway.http.context import RequestContext
from gateway.http.decisions import DecisionLog, ExplainedDecision, explained
from gateway.http.dialects.registry import dialect_for
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import Refused, Ticket
from gateway.telemetry.record import RequestRecord
from gateway.types import Match, Role
from policies.base import RouteRequest
from policies.registry import build

NOW = 100.0
ARRIVED = 99.5


def context() -> RequestContext:
    async def nowhere(*_: object) -> None:
        """Nothing is received or sent."""

    dialect = dialect_for("POST", "/v1/completions")
    record = RequestRecord("r-1", dialect.name, arrived=ARRIVED, arrived_unix=1e9, model="m")
    record.tenant = "someone@example.com"
    client = AsgiClient(nowhere, nowhere)
    return RequestContext({}, client, dialect, record)


def pool(policy: str = "prefix_affinity", gate: float | None = 0.5) -> Pool:
    recorded = explained(build(policy, {}), lambda: gate)
    made = Pool("m", Role.UNIFIED, recorded, Scheduling(gate=gate), lambda: NOW)
    made.set_backends([BackendLoad("a"), BackendLoad("b")])
    return made


def ask(prompt_tokens: int = 1000) -> Ticket:
    request = RouteRequest(
        "m",
        prompt_tokens=prompt_tokens,
        match=Match({"a": 9}, {"a": 900.0}),
        now=NOW,
        tenant="t",
        deadline=NOW + 1.5,
    )
    return Ticket(request, lambda lease: None, lambda refusal: None)


def test_a_recorded_policy_decides_as_it_did() -> None:
    plain = build("prefix_affinity", {})
    recorded = explained(build("prefix_affinity", {}), lambda: 0.5)
    loads = [BackendLoad("a"), BackendLoad("b")]
    request = ask().request
    decision = recorded.choose(request, loads)
    before = plain.choose(request, loads)
    assert (decision.backend, decision.reason, decision.scores) == (
        before.backend,
        before.reason,
        before.scores,
    )
    assert (recorded.name, recorded.late_binding) == (plain.name, plain.late_binding)
    assert recorded.params == plain.params
    assert isinstance(decision, ExplainedDecision)
    for cost, score in zip(decision.candidates, before.scores, strict=True):
        assert cost.terms["total"] == pytest.approx(score, abs=1e-6)


def test_policies_without_scores_are_recorded_too() -> None:
    decision = explained(build("round_robin", {}), lambda: None).choose(
        ask().request, [BackendLoad("a")]
    )
    assert isinstance(decision, ExplainedDecision)
    [cost] = decision.candidates
    assert (cost.backend, cost.score, cost.open) == ("a", None, True)


def test_a_line_tells_what_was_decided_and_why(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    log = DecisionLog(str(path), lambda: NOW)
    ticket = ask()
    lease = pool().submit(ticket)
    assert lease is not None
    log.note(context(), ticket, lease)
    log.close()
    line = json.loads(path.read_text())
    assert (line["id"], line["backend"], line["reason"]) == ("r-1", "a", "prefix")
    assert (line["deadline"], line["decided"], line["queue_seconds"]) == (2.0, 0.5, 0.0)
    assert line["refusal"] is None
    assert [candidate["backend"] for candidate in line["candidates"]] == ["a", "b"]
    assert line["candidates"][0]["matched_tokens"] == 900
    assert "example.com" not in path.read_text()


def test_a_line_tells_of_closed_gates(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    log = DecisionLog(str(path), lambda: NOW)
    busy = pool()
    busy.submit(ask(20_000))
    ticket = ask()
    lease = busy.submit(ticket)
    assert lease is not None
    log.note(context(), ticket, lease)
    log.close()
    first, second = json.loads(path.read_text())["candidates"]
    assert (first["open"], second["open"]) == (False, True)
    assert first["pending_seconds"] > 0.5


def test_a_refusal_is_a_line_as_well(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    log = DecisionLog(str(path), lambda: NOW)
    closed = pool()
    closed.close()
    ticket = ask()
    with pytest.raises(Refused) as caught:
        closed.submit(ticket)
    log.note(context(), ticket, caught.value)
    log.close()
    line = json.loads(path.read_text())
    assert (line["backend"], line["refusal"], line["candidates"]) == (None, "shutting_down", [])
    assert line["queue_seconds"] == 0.5
