"""What several workers answer to one question, as one answer.

Every function takes at least one answer, that of the worker that was asked first. What is counted
or under way is added up; what every worker knows for itself (a backend's state, the index) is the
first one's; of what says that something is wrong, the worst is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from gateway.admin.views import (
    BackendView,
    DiscoveryView,
    IndexView,
    KeyView,
    LineView,
    LoadView,
    PoolView,
    QueueView,
    RequestView,
)
from gateway.disagg.advice import Observed, advise
from gateway.disagg.report import ModelReport, PoolReport, TransferReport, WasteReport
from gateway.types import Role

T = TypeVar("T")
K = TypeVar("K")


def backends(answers: Sequence[list[BackendView]]) -> list[BackendView]:
    """Those that the first worker has; the others will have heard of them, too, in a moment."""
    by_id = _grouped((view for answer in answers for view in answer), lambda view: view.id)
    return [backend(by_id[view.id]) for view in answers[0]]


def backend(views: Sequence[BackendView]) -> BackendView:
    return replace(views[0], load=_load([view.load for view in views]))


def _load(views: Sequence[LoadView]) -> LoadView:
    """Each worker counts what the others sent, and may not have heard of the last of it yet."""
    return replace(
        views[0],
        in_flight=max(view.in_flight for view in views),
        decoding=max(view.decoding for view in views),
        pending_tokens=max(view.pending_tokens for view in views),
        pending_seconds=max(view.pending_seconds for view in views),
        context_tokens=max(view.context_tokens for view in views),
    )


def discovery(answers: Sequence[list[DiscoveryView]]) -> list[DiscoveryView]:
    by_name = _grouped((view for answer in answers for view in answer), lambda view: view.name)
    return [
        replace(view, failures=sum(each.failures for each in by_name[view.name]))
        for view in answers[0]
    ]


def index(views: Sequence[IndexView]) -> IndexView:
    """Each worker has the whole tree; the prefixes that are booked are its own requests'."""
    return replace(views[0], bookings=sum(view.bookings for view in views))


def queues(answers: Sequence[list[PoolView]]) -> list[PoolView]:
    pools = _grouped(
        (view for answer in answers for view in answer), lambda view: (view.model, view.role)
    )
    return [_pool(views) for views in pools.values()]


def _pool(views: Sequence[PoolView]) -> PoolView:
    lines = _grouped(
        ((id, line) for view in views for id, line in view.backends.items()), lambda pair: pair[0]
    )
    return replace(
        views[0],
        backends={id: _line([line for _, line in pairs]) for id, pairs in lines.items()},
        unplaced=sum(view.unplaced for view in views),
        tenants=max(view.tenants for view in views),
        queues={
            work_class: _queue([view.queues[work_class] for view in views])
            for work_class in views[0].queues
        },
    )


def _line(views: Sequence[LineView]) -> LineView:
    return LineView(
        waiting=sum(view.waiting for view in views),
        held_seconds=sum(view.held_seconds for view in views),
        pending_seconds=max(view.pending_seconds for view in views),
        open=all(view.open for view in views),
        hold=next((view.hold for view in views if view.hold is not None), None),
    )


def _queue(views: Sequence[QueueView]) -> QueueView:
    return QueueView(
        waiting=sum(view.waiting for view in views),
        waiting_tokens=sum(view.waiting_tokens for view in views),
        oldest_wait=max(view.oldest_wait for view in views),
        granted=sum(view.granted for view in views),
        cancelled=sum(view.cancelled for view in views),
        refused=_summed(view.refused for view in views),
    )


def disagg(answers: Sequence[list[ModelReport]]) -> list[ModelReport]:
    """Workers share one load, so that the percentiles of each are guesses at those of all."""
    by_model = _grouped((each for answer in answers for each in answer), lambda each: each.model)
    return [_report(by_model[each.model]) for each in answers[0]]


def _report(reports: Sequence[ModelReport]) -> ModelReport:
    if len(reports) == 1:
        return reports[0]
    pools = _grouped((pool for each in reports for pool in each.pools), lambda pool: pool.role)
    merged = [_shared_pool(each) for each in pools.values()]
    observed = _observed([each.observed for each in reports], merged)
    wasted = [each.wasted_prefills for each in reports]
    return replace(
        reports[0],
        advice=advise(observed),
        pools=merged,
        requests_count=sum(each.requests_count for each in reports),
        handovers_count=sum(each.handovers_count for each in reports),
        transfers=_transfers([each.transfers for each in reports]),
        wasted_prefills=WasteReport(
            count=sum(each.count for each in wasted),
            reasons=_summed(each.reasons for each in wasted),
            prefill_seconds=sum(each.prefill_seconds for each in wasted),
        ),
        bandwidth_bytes_per_second=_mean(
            (each.bandwidth_bytes_per_second, 1 + each.transfers.timed_count) for each in reports
        ),
        transfer_basis=next(
            (each.transfer_basis for each in reports if each.transfers.timed_count),
            reports[0].transfer_basis,
        ),
        observed=observed,
    )


def _shared_pool(pools: Sequence[PoolReport]) -> PoolReport:
    used = [pool.utilisation_ratio for pool in pools if pool.utilisation_ratio is not None]
    return replace(
        pools[0],
        prefill_seconds_per_second=sum(pool.prefill_seconds_per_second for pool in pools),
        decode_seconds_per_second=sum(pool.decode_seconds_per_second for pool in pools),
        utilisation_ratio=sum(used) if used else None,
    )


def _transfers(reports: Sequence[TransferReport]) -> TransferReport:
    def mean(name: str) -> float | None:
        return _mean((getattr(each, name), each.timed_count) for each in reports)

    moved = [each.kv_bytes_moved for each in reports if each.kv_bytes_moved is not None]
    return TransferReport(
        count=sum(each.count for each in reports),
        kv_tokens_moved=sum(each.kv_tokens_moved for each in reports),
        kv_bytes_moved=sum(moved) if moved else None,
        timed_count=sum(each.timed_count for each in reports),
        predicted_p50_seconds=mean("predicted_p50_seconds"),
        predicted_p95_seconds=mean("predicted_p95_seconds"),
        observed_p50_seconds=mean("observed_p50_seconds"),
        observed_p95_seconds=mean("observed_p95_seconds"),
    )


def _observed(views: Sequence[Observed], pools: Sequence[PoolReport]) -> Observed:
    def mean(name: str, count: str) -> float | None:
        return _mean((getattr(each, name), getattr(each, count)) for each in views)

    used = {pool.role: pool.utilisation_ratio for pool in pools}
    return replace(
        views[0],
        ttft_count=sum(each.ttft_count for each in views),
        ttft_p50_seconds=mean("ttft_p50_seconds", "ttft_count"),
        ttft_p99_seconds=mean("ttft_p99_seconds", "ttft_count"),
        all_ttft_count=sum(each.all_ttft_count for each in views),
        all_ttft_p50_seconds=mean("all_ttft_p50_seconds", "all_ttft_count"),
        all_ttft_p99_seconds=mean("all_ttft_p99_seconds", "all_ttft_count"),
        tpot_count=sum(each.tpot_count for each in views),
        tpot_p50_seconds=mean("tpot_p50_seconds", "tpot_count"),
        tpot_p99_seconds=mean("tpot_p99_seconds", "tpot_count"),
        prompt_count=sum(each.prompt_count for each in views),
        prompt_mean_tokens=mean("prompt_mean_tokens", "prompt_count"),
        prompt_deviation_tokens=mean("prompt_deviation_tokens", "prompt_count"),
        prompt_p95_tokens=mean("prompt_p95_tokens", "prompt_count"),
        transfer_p95_prompt_seconds=mean("transfer_p95_prompt_seconds", "prompt_count"),
        concurrency_requests=sum(each.concurrency_requests for each in views),
        handover_ratio=mean("handover_ratio", "prompt_count"),
        prefill_seconds_per_second=sum(each.prefill_seconds_per_second for each in views),
        decode_seconds_per_second=sum(each.decode_seconds_per_second for each in views),
        prefill_utilisation_ratio=used.get(Role.PREFILL),
        decode_utilisation_ratio=used.get(Role.DECODE),
    )


def _mean(pairs: Iterable[tuple[float | None, float]]) -> float | None:
    """Of values with weights; None where none has both."""
    known = [(value, weight) for value, weight in pairs if value is not None and weight]
    weights = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weights if known else None


def requests(answers: Sequence[list[RequestView]]) -> list[RequestView]:
    """The oldest first."""
    return sorted((view for answer in answers for view in answer), key=lambda view: -view.age)


def keys(answers: Sequence[list[KeyView]]) -> list[KeyView]:
    by_name = _grouped((view for answer in answers for view in answer), lambda view: view.name)
    return [_key(by_name[view.name]) for view in answers[0]]


def _key(views: Sequence[KeyView]) -> KeyView:
    # One that counts with all replicas has the others' in it; the highest is the latest.
    together = [view for view in views if view.shared]
    counted, add = (together, max) if together else (views, sum)
    return replace(
        views[0],
        shared=bool(together),
        requests_used=add(view.requests_used for view in counted),
        tokens_used=add(view.tokens_used for view in counted),
        concurrent=add(view.concurrent for view in counted),
        requests_total=sum(view.requests_total for view in views),
        tokens_total=sum(view.tokens_total for view in views),
        limited=_summed(view.limited for view in views),
    )


def _grouped(values: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """In the order of each key's first value."""
    groups: dict[K, list[T]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


def _summed(counts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    sums: dict[K, int] = {}
    for each in counts:
        for name, count in each.items():
            sums[name] = sums.get(name, 0) + count
    return sums
