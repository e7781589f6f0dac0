"""Metrics of requests: how many, of what size, how long they took and waited."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.telemetry.family import Family, Labels, Merge, Scrape, Value
from gateway.telemetry.histogram import Histogram
from gateway.telemetry.metrics import UNNAMED, ClassSeries, ModelSeries
from gateway.telemetry.sources import PoolState, PoolView
from gateway.types import WorkClass


def _requests(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for model, series in scrape.metrics.models.items():
        for dialect, outcomes in series.requests.items():
            for outcome, count in outcomes.items():
                yield (model, dialect, outcome.value), count


def _routed(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for backend, series in scrape.metrics.backends.items():
        for work_class, count in series.routed.items():
            yield (backend, work_class.value), count


def _in_flight(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for load in scrape.sources.loads:
        for work_class in WorkClass:
            yield (load.id, work_class.value), load.of(work_class).own


def _cache_error(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    yield ("over",), scrape.metrics.cache_overestimate
    yield ("under",), scrape.metrics.cache_underestimate


def _refusals(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for (work_class, reason), count in scrape.metrics.refusals.items():
        yield (work_class.value, str(reason)), count


def _queue_waits(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for work_class, series in scrape.metrics.classes.items():
        for priority, histogram in series.queue_wait.items():
            yield (work_class.value, priority.value), histogram


def _held(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    held: dict[str, int] = {}
    for pool in scrape.sources.pools:
        for backend, waiting in pool.snapshot().backends.items():
            held[backend] = held.get(backend, 0) + waiting
    for backend, waiting in held.items():
        yield (backend,), waiting


def _tokens(name: str, help: str, count: Callable[[ModelSeries], float]) -> Family:
    """A counter of tokens by model."""

    def read(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
        for model, series in scrape.metrics.models.items():
            yield (model,), count(series)

    return Family(name, "counter", ("model",), help, read)


def _latency(name: str, help: str, histogram: Callable[[ClassSeries], Histogram]) -> Family:
    """A histogram of seconds by class."""

    def read(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
        for work_class, series in scrape.metrics.classes.items():
            yield (work_class.value,), histogram(series)

    return Family(name, "histogram", ("class",), help, read)


def _queue(
    name: str, help: str, value: Callable[[PoolView, WorkClass], float], merge: Merge
) -> Family:
    """A gauge of each pool's queues."""

    def read(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
        for pool in scrape.sources.pools:
            for work_class in WorkClass:
                yield (pool.model or UNNAMED, work_class.value), value(pool, work_class)

    return Family(name, "gauge", ("model", "class"), help, read, merge)


def _pool(name: str, help: str, value: Callable[[PoolState], int], merge: Merge) -> Family:
    """A gauge of each pool."""

    def read(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
        for pool in scrape.sources.pools:
            yield (pool.model or UNNAMED,), value(pool.snapshot())

    return Family(name, "gauge", ("model",), help, read, merge)


REQUEST_FAMILIES: tuple[Family, ...] = (
    # requests
    Family(
        "prefixgate_requests_total",
        "counter",
        ("model", "dialect", "outcome"),
        "Requests that ended, by how they ended.",
        _requests,
    ),
    Family(
        "prefixgate_routed_requests_total",
        "counter",
        ("backend", "class"),
        "Requests that got a lease.",
        _routed,
    ),
    Family(
        "prefixgate_decisions_total",
        "counter",
        ("reason",),
        "Routed requests, by why the decision fell as it did.",
        lambda scrape: (
            ((reason.value,), count) for reason, count in scrape.metrics.decisions.items()
        ),
    ),
    Family(
        "prefixgate_spills_total",
        "counter",
        ("cause",),
        "Routed requests that went elsewhere than where most of them is cached, by why.",
        lambda scrape: (((cause,), count) for cause, count in scrape.metrics.spills.items()),
    ),
    Family(
        "prefixgate_head_refusals_total",
        "counter",
        ("reason",),
        "Connections and requests refused before they were requests: too many, too large, broken.",
        lambda scrape: (
            ((reason,), count) for reason, count in scrape.metrics.head_refusals.items()
        ),
    ),
    Family(
        "prefixgate_unkeyed_requests_total",
        "counter",
        ("dialect",),
        "Routed requests without a prompt key to match by.",
        lambda scrape: (((dialect,), count) for dialect, count in scrape.metrics.unkeyed.items()),
    ),
    Family(
        "prefixgate_queue_refusals_total",
        "counter",
        ("class", "reason"),
        "Requests that got no lease, by why.",
        _refusals,
    ),
    Family(
        "prefixgate_client_disconnects_total",
        "counter",
        ("phase",),
        "Clients that left before the end, by where their request was.",
        lambda scrape: (((phase,), count) for phase, count in scrape.metrics.disconnects.items()),
    ),
    # tokens
    _tokens(
        "prefixgate_prompt_tokens_total",
        "Prompt tokens of routed requests, as estimated at the decision.",
        lambda series: series.prompt_tokens,
    ),
    _tokens(
        "prefixgate_matched_tokens_total",
        "Of these, expected to be cached at the chosen backend.",
        lambda series: series.matched_tokens,
    ),
    _tokens(
        "prefixgate_uncached_tokens_total",
        "Of these, expected to be prefilled.",
        lambda series: series.uncached_tokens,
    ),
    _tokens(
        "prefixgate_reported_prompt_tokens_total",
        "Prompt tokens as engines report them.",
        lambda series: series.reported_prompt_tokens,
    ),
    _tokens(
        "prefixgate_cache_reported_prompt_tokens_total",
        "Of these, in answers that also tell how many were cached.",
        lambda series: series.cache_reported_prompt_tokens,
    ),
    _tokens(
        "prefixgate_reported_cached_tokens_total",
        "Of these, served from the engine's prefix cache.",
        lambda series: series.reported_cached_tokens,
    ),
    _tokens(
        "prefixgate_output_tokens_total",
        "Output tokens, as reported by the engine or else counted in the stream.",
        lambda series: series.output_tokens,
    ),
    Family(
        "prefixgate_cached_tokens_error",
        "histogram",
        ("direction",),
        "Predicted minus reported cached tokens of a request, by sign.",
        _cache_error,
    ),
    # latencies
    _latency(
        "prefixgate_ttft_seconds",
        "From a request's arrival to the first content of its stream.",
        lambda series: series.ttft,
    ),
    _latency(
        "prefixgate_tpot_seconds",
        "Mean time per output token after the first, of a stream.",
        lambda series: series.tpot,
    ),
    Family(
        "prefixgate_queue_wait_seconds",
        "histogram",
        ("class", "priority"),
        "How long routed requests waited for their lease.",
        _queue_waits,
    ),
    _latency(
        "prefixgate_request_seconds",
        "From a routed request's arrival to its end.",
        lambda series: series.request,
    ),
    # scheduling
    Family(
        "prefixgate_in_flight",
        "gauge",
        ("backend", "class"),
        "Requests dispatched and not yet finished.",
        _in_flight,
        "sum",
    ),
    _queue(
        "prefixgate_queue_depth",
        "Requests that wait for a lease.",
        lambda pool, work_class: pool.depth(work_class),
        "sum",
    ),
    _queue(
        "prefixgate_queue_oldest_wait_seconds",
        "How long the request at the head of the queue has waited.",
        lambda pool, work_class: pool.oldest_wait(work_class),
        "max",
    ),
    Family(
        "prefixgate_queue_held",
        "gauge",
        ("backend",),
        "Requests that wait in the gateway for one backend to be ready for them.",
        _held,
        "sum",
    ),
    _pool(
        "prefixgate_queue_unplaced",
        "Requests that wait because no backend has room for them.",
        lambda state: state.unplaced,
        "sum",
    ),
    _pool(
        "prefixgate_queue_tenants",
        "Tenants that have requests waiting.",
        lambda state: state.tenants,
        "max",
    ),
    Family(
        "prefixgate_gate_closed",
        "gauge",
        ("backend",),
        "1 while so much prefill is pending at the backend that requests for it are held.",
        lambda scrape: (
            ((backend,), int(gate.closed)) for backend, gate in scrape.sources.gates().items()
        ),
        "max",
    ),
    Family(
        "prefixgate_pending_prefill_seconds",
        "gauge",
        ("backend",),
        "Prefill that was sent to the backend and should not be done yet.",
        lambda scrape: (
            ((backend,), gate.pending_seconds) for backend, gate in scrape.sources.gates().items()
        ),
        "max",
    ),
)
