"""What several workers answer, as one answer."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.admin import merging
from gateway.admin.operations import AdminApi
from gateway.admin.views import IndexView, KeyView, LineView, PoolView, QueueView, RequestView
from gateway.disagg.advice import Remedy
from gateway.disagg.report import ModelReport
from gateway.disagg.span import Waste
from gateway.types import Priority, Role, WorkClass
from tests.admin.control import FakeControl

QUEUE = QueueView(
    waiting=1,
    waiting_tokens=100,
    oldest_wait=2.0,
    granted=10,
    cancelled=3,
    refused={"full": 1},
)
LINE = LineView(waiting=1, held_seconds=0.5, pending_seconds=1.0, open=True, hold=None)
POOL = PoolView(
    model="m",
    role=Role.UNIFIED,
    backends={"a": LINE},
    unplaced=1,
    tenants=2,
    queues={WorkClass.DECODE: QUEUE},
)
KEY = KeyView(
    name="k",
    tenant="t",
    models=None,
    max_priority=Priority.NORMAL,
    requests_per_minute=5,
    tokens_per_minute=None,
    max_concurrent=None,
    shared=False,
    requests_used=1,
    tokens_used=10,
    concurrent=1,
    requests_total=7,
    tokens_total=70,
    limited={"requests": 2},
)


def request(id: str, age: float) -> RequestView:
    fields: dict[str, Any] = {
        **{"dialect": "d", "model": "m", "stream": True, "phase": "queue", "work_class": None},
        **{"priority": Priority.NORMAL, "tenant": None, "prompt_tokens": 1, "backend": None},
        **{"reason": None, "matched_tokens": 0.0, "queue_seconds": 0.0},
    }
    return RequestView(id=id, age=age, **fields)


def test_one_answer_stays_what_it_is() -> None:
    """Whatever a single worker says, merging changes nothing in it."""
    merges = {each.id: each for each in AdminApi(FakeControl()).operations() if each.merge}
    assert set(merges) == {
        *("listBackends", "getBackend", "listDiscovery", "getIndex"),
        *("listQueues", "listRequests", "listKeys", "getDisagg"),
    }
    first = FakeControl().first
    for operation in merges.values():
        answered = operation.handler({"id": first}, None)
        assert isinstance(answered, tuple)
        assert operation.merge is not None
        assert operation.merge([answered[1]]) == answered[1]


def test_answers_survive_the_way_from_another_worker() -> None:
    for operation in AdminApi(FakeControl()).operations():
        if operation.merge is not None:
            answered = operation.handler({"id": FakeControl().first}, None)
            assert isinstance(answered, tuple)
            sent = msgspec.json.encode(answered[1])
            assert msgspec.json.decode(sent, type=operation.answers[200]) == answered[1]


def test_a_backend_has_the_load_that_the_best_informed_worker_knows_of() -> None:
    [view] = FakeControl().backends()
    busy = replace(view, load=replace(view.load, in_flight=3, context_tokens=50))
    [merged] = merging.backends([[view], [busy], []])
    assert (merged.load.in_flight, merged.load.context_tokens) == (3, 50)
    assert merged.state == view.state


def test_the_index_is_the_same_everywhere_but_for_what_is_booked() -> None:
    index = IndexView(
        **{"nodes": 5, "blocks": 4, "held_blocks": 3, "dead_blocks": 1, "max_blocks": 9},
        **{"evicted_blocks": 0, "bookings": 2},
        backends={},
    )
    assert merging.index([index, index]) == replace(index, bookings=4)


def test_queues_are_added_up() -> None:
    busy = replace(LINE, open=False, pending_seconds=3.0)
    other = replace(POOL, backends={"a": busy, "b": LINE}, tenants=3)
    alone = replace(POOL, model="other")
    pool, left = merging.queues([[POOL], [other, alone]])
    assert left == alone
    assert pool.backends["b"] == LINE
    line = pool.backends["a"]
    assert (line.waiting, line.held_seconds, line.pending_seconds) == (2, 1.0, 3.0)
    assert not line.open
    assert (pool.unplaced, pool.tenants) == (2, 3)
    queue = pool.queues[WorkClass.DECODE]
    assert (queue.waiting, queue.waiting_tokens, queue.oldest_wait) == (2, 200, 2.0)
    assert (queue.granted, queue.cancelled, queue.refused) == (20, 6, {"full": 2})


def test_requests_are_all_of_them_and_the_oldest_first() -> None:
    merged = merging.requests([[request("a", 1.0)], [request("b", 3.0), request("c", 0.5)], []])
    assert [view.id for view in merged] == ["b", "a", "c"]


def test_the_use_of_keys_is_added_up() -> None:
    [key] = merging.keys([[KEY], [replace(KEY, limited={"tokens": 1})], []])
    assert (key.requests_used, key.tokens_used, key.concurrent) == (2, 20, 2)
    assert (key.requests_total, key.tokens_total) == (14, 140)
    assert key.limited == {"requests": 2, "tokens": 1}
    assert key.requests_per_minute == 5


def test_what_all_replicas_have_used_is_not_added_up() -> None:
    one = replace(KEY, shared=True, requests_used=3, tokens_used=30, concurrent=2)
    late = replace(one, requests_used=2, tokens_used=20)
    alone = replace(KEY, requests_used=9)
    [key] = merging.keys([[late], [one], [alone]])
    assert (key.shared, key.requests_used, key.tokens_used, key.concurrent) == (True, 3, 30, 2)
    assert key.requests_total == 21


def disagg_report(count: int, ttft: float | None, **changes: Any) -> ModelReport:
    [report] = FakeControl().disagg()
    observed = replace(
        report.observed,
        ttft_count=count,
        ttft_p50_seconds=ttft,
        ttft_p99_seconds=ttft,
        prompt_count=count,
        prompt_mean_tokens=1000.0 if count else None,
        prompt_deviation_tokens=1000.0 if count else None,
        prompt_p95_tokens=4000.0 if count else None,
        transfer_p95_prompt_seconds=0.1,
        concurrency_requests=count / 20,
        unified_engines=4,
    )
    return replace(report, observed=observed, **changes)


def test_advice_is_given_for_what_all_workers_see() -> None:
    """Neither of them alone has enough requests in flight."""
    one, other = disagg_report(80, 1.0), disagg_report(120, 2.0)
    [report] = merging.disagg([[one], [other]])
    seen = report.observed
    assert (seen.concurrency_requests, seen.ttft_count, seen.unified_engines) == (10.0, 200, 4)
    assert seen.ttft_p99_seconds == 1.6
    assert (report.advice.pays, report.advice.advice) == (True, Remedy.DISAGGREGATE)
    assert report.requests_count == 8
    assert report.wasted_prefills.reasons == {Waste.EXPIRED: 2}
    [pool] = report.pools
    assert (pool.engines, pool.prefill_seconds_per_second, pool.utilisation_ratio) == (1, 0.5, 1.5)


def test_a_worker_that_saw_nothing_changes_no_percentile() -> None:
    busy, idle = disagg_report(200, 1.0), disagg_report(0, None, requests_count=0)
    for answers in ([[busy], [idle]], [[idle], [busy]]):
        [report] = merging.disagg(answers)
        assert report.observed.ttft_p99_seconds == 1.0
        assert report.observed.prompt_p95_tokens == 4000.0
        assert report.transfers.kv_bytes_moved is None
