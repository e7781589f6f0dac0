from __future__ import annotations

from collections.abc import Iterable

import pytest

from gateway.telemetry.metrics import MAX_MODELS, OTHER, UNNAMED, Metrics
from gateway.telemetry.record import RequestRecord
from gateway.types import Outcome, Priority, Reason, WorkClass
from tests.telemetry.records import BACKEND, SERVED, refused, routed


def metrics_of(records: Iterable[RequestRecord]) -> Metrics:
    metrics = Metrics({SERVED}.__contains__)
    metrics.backend_changed(BACKEND, "healthy")
    for record in records:
        metrics.observe(record)
    return metrics


def requests(metrics: Metrics, model: str = SERVED) -> dict[Outcome, int]:
    [outcomes] = metrics.models[model].requests.values()
    return {outcome: count for outcome, count in outcomes.items() if count}


def decisions(metrics: Metrics) -> dict[Reason, int]:
    return {reason: count for reason, count in metrics.decisions.items() if count}


def test_a_routed_request_is_counted_everywhere_once() -> None:
    metrics = metrics_of([routed()])
    assert requests(metrics) == {Outcome.OK: 1}
    assert decisions(metrics) == {Reason.PREFIX: 1}
    assert metrics.backends[BACKEND].routed == {WorkClass.DECODE: 1, WorkClass.PREFILL: 0}
    model = metrics.models[SERVED]
    assert (model.prompt_tokens, model.matched_tokens, model.uncached_tokens) == (1000, 800, 200)
    assert model.output_tokens == 100
    series = metrics.classes[WorkClass.DECODE]
    assert series.ttft.sum == 0.12
    assert series.tpot.sum == 0.011
    assert {priority: wait.sum for priority, wait in series.queue_wait.items()} == {
        Priority.HIGH: 0.02,
        Priority.NORMAL: 0,
        Priority.LOW: 0,
    }
    assert series.request.sum == 1.5
    assert metrics.classes[WorkClass.PREFILL].request.count == 0
    assert not metrics.unkeyed
    assert not metrics.disconnects
    assert not metrics.refusals


def test_a_refused_request_is_no_routed_one() -> None:
    metrics = metrics_of([refused()])
    assert requests(metrics) == {Outcome.REJECTED: 1}
    assert metrics.refusals == {(WorkClass.PREFILL, "queue_full"): 1}
    assert decisions(metrics) == {}
    assert metrics.models[SERVED].prompt_tokens == 0
    waits = metrics.classes[WorkClass.PREFILL].queue_wait.values()
    assert sum(wait.count for wait in waits) == 0


def test_a_request_that_was_never_classified_has_an_outcome_only() -> None:
    record = RequestRecord("r", "openai-chat", outcome=Outcome.CLIENT_ERROR, status=400)
    metrics = metrics_of([record])
    assert requests(metrics, UNNAMED) == {Outcome.CLIENT_ERROR: 1}
    assert all(series.request.count == 0 for series in metrics.classes.values())


def test_X09_no_first_token_is_no_time_to_first_token() -> None:
    metrics = metrics_of([routed(ttft=None, tpot=None, outcome=Outcome.UPSTREAM_ERROR)])
    series = metrics.classes[WorkClass.DECODE]
    assert series.ttft.count == series.tpot.count == 0
    assert series.request.count == 1


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    series = metrics_of([routed(tpot=None)]).classes[WorkClass.DECODE]
    assert (series.ttft.count, series.tpot.count) == (1, 0)


def test_a_request_without_a_key_is_counted_as_such() -> None:
    assert metrics_of([routed(keyed=False)]).unkeyed == {"openai-chat": 1}


def test_a_disconnect_is_counted_by_phase() -> None:
    records = [
        routed(outcome=Outcome.CANCELLED, disconnect_phase="answer"),
        refused(outcome=Outcome.CANCELLED, refusal=None, disconnect_phase="queue"),
    ]
    assert metrics_of(records).disconnects == {"answer": 1, "queue": 1}


def test_a_request_that_ended_without_an_outcome_is_our_fault() -> None:
    assert requests(metrics_of([routed(outcome=None)])) == {Outcome.INTERNAL_ERROR: 1}


def test_decisions_sum_to_routed_and_outcomes_to_requests() -> None:
    records = [routed(reason=reason) for reason in Reason]
    records += [refused(), refused(work_class=None), routed(outcome=Outcome.TIMEOUT)]
    metrics = metrics_of(records)
    routed_there = sum(metrics.backends[BACKEND].routed.values())
    assert sum(metrics.decisions.values()) == routed_there == len(Reason) + 1
    assert sum(requests(metrics).values()) == len(records)


# predicted and actual


@pytest.mark.parametrize(
    ("cached", "over", "under"),
    [
        (1600, 0.0, 0.0),
        (1000, 600.0, 0.0),
        (2000, 0.0, 400.0),
    ],
)
def test_predictions_are_compared_as_shares(cached: int, over: float, under: float) -> None:
    # predicted: 800 of 1000, which is 1600 of the 2000 that the engine counts
    record = routed(reported_prompt_tokens=2000, reported_cached_tokens=cached)
    metrics = metrics_of([record])
    assert metrics.cache_overestimate.sum == over
    assert metrics.cache_underestimate.sum == under
    assert metrics.cache_overestimate.count + metrics.cache_underestimate.count == 1
    model = metrics.models[SERVED]
    assert model.reported_prompt_tokens == model.cache_reported_prompt_tokens == 2000
    assert model.reported_cached_tokens == cached


def test_engines_that_never_tell_cached_tokens_are_not_compared() -> None:
    metrics = metrics_of([routed(reported_prompt_tokens=2000)])
    model = metrics.models[SERVED]
    assert (model.reported_prompt_tokens, model.cache_reported_prompt_tokens) == (2000, 0)
    assert metrics.cache_overestimate.count == metrics.cache_underestimate.count == 0


# bounded series


def test_X01_invented_models_share_one_series() -> None:
    metrics = metrics_of(refused(model=f"invented-{number}" * 100) for number in range(5000))
    metrics.observe(routed())
    assert metrics.models.keys() == {OTHER, SERVED}
    assert requests(metrics, OTHER) == {Outcome.REJECTED: 5000}
    assert requests(metrics) == {Outcome.OK: 1}


def test_a_model_gets_its_own_series_once_it_is_served() -> None:
    served: set[str] = set()
    metrics = Metrics(served.__contains__)
    metrics.observe(refused())
    served.add(SERVED)
    metrics.observe(refused())
    assert metrics.models.keys() == {OTHER, SERVED}


def test_served_models_are_bounded_too() -> None:
    served = {f"adapter-{number}" for number in range(MAX_MODELS)}
    metrics = Metrics(lambda name: name in served)
    for name in served:
        metrics.observe(refused(model=name))
    served.clear()
    served.add("new")
    metrics.observe(refused(model="new"))
    assert metrics.models.keys() - {OTHER} == {f"adapter-{n}" for n in range(MAX_MODELS)}
    metrics.backend_changed(BACKEND, "removed")
    metrics.observe(refused(model="new"))
    assert "new" in metrics.models
    assert len(metrics.models) <= 2


def test_a_removed_backend_takes_its_series_along() -> None:
    metrics = metrics_of([routed()])
    metrics.backend_changed(BACKEND, "removed")
    assert metrics.backends == {}
    metrics.observe(routed())
    metrics.upstream_error(BACKEND, "reset")
    assert metrics.backends.keys() == {OTHER}
    other = metrics.backends[OTHER]
    assert other.routed[WorkClass.DECODE] == 1
    assert other.errors == {"reset": 1}


def test_ejections_are_counted_when_they_begin() -> None:
    metrics = metrics_of([routed()])
    for state in ("ejected", "ejected", "healthy", "draining", "healthy", "ejected"):
        metrics.backend_changed(BACKEND, state)
    backend = metrics.backends[BACKEND]
    assert backend.ejections == 2
    assert backend.routed[WorkClass.DECODE] == 1


def test_a_backend_that_only_failed_so_far_is_counted_from_its_first_day() -> None:
    metrics = metrics_of([])
    metrics.backend_changed("b2", "starting")
    metrics.upstream_error("b2", "connect")
    metrics.upstream_error("b2", "connect")
    assert metrics.backends["b2"].errors == {"connect": 2}
