"""Every metric of the gateway, in one table: name, type, labels, meaning, and where it is read.

`docs/metrics.md` explains them; a test holds the two together. Label values come from closed sets
or from the fleet, never from clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.telemetry.family import Family, Kind, Labels, Merge, Scrape, Value
from gateway.telemetry.histogram import Histogram
from gateway.telemetry.metrics import OTHER, UNNAMED, ClassSeries, ModelSeries
from gateway.telemetry.shared_families import SHARED_FAMILIES
from gateway.telemetry.sources import (
    FeedReading,
    KeyUse,
    PoolState,
    PoolView,
    ReportedView,
)
from gateway.types import WorkClass


def _requests(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for model, series in scrape.metrics.models.items():
        for dialect, outcomes in series.requests.items():
            for outcome, count in outcomes.items():
                yield (model, dialect, outcome.value), count


def _upstream_errors(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for backend, series in scrape.metrics.backends.items():
        for kind, count in series.errors.items():
            yield (backend, str(kind)), count


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


def _estimate_errors(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for estimate, errors in scrape.sources.errors().items():
        yield (str(estimate), "over"), 0.5 * (errors.absolute + errors.signed)
        yield (str(estimate), "under"), 0.5 * (errors.absolute - errors.signed)


def _bytes_per_token(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for model in scrape.metrics.models:
        if model not in (OTHER, UNNAMED):
            yield (model,), scrape.sources.bytes_per_token(model)


def _load_age(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    now = scrape.sources.clock()
    for load in scrape.sources.loads:
        if load.reported_at is not None:
            yield (load.id,), now - load.reported_at


def _reported(name: str, help: str, value: Callable[[ReportedView], float | None]) -> Family:
    """A gauge of what engines say; no sample where they do not."""

    def read(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
        for load in scrape.sources.loads:
            if load.reported is not None and (said := value(load.reported)) is not None:
                yield (load.id,), said

    return Family(name, "gauge", ("backend",), help, read, "max")


def _discovery(name: str, kind: Kind, help: str, value: Callable[[FeedReading], float]) -> Family:
    """A metric of each configured source of backends."""

    def read(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
        for reading in scrape.sources.feeds():
            yield (reading.feed.name,), value(reading)

    return Family(name, kind, ("source",), help, read, "max" if kind == "gauge" else None)


def _auth_failures(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for reason, count in scrape.sources.keys.failures.items():
        yield (str(reason),), count


def _limited(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for key, use in scrape.sources.keys.uses.items():
        for limit, count in use.refused.items():
            yield (key, str(limit)), count


def _of_keys(name: str, help: str, count: Callable[[KeyUse], int]) -> Family:
    """A counter by API key."""

    def read(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
        for key, use in scrape.sources.keys.uses.items():
            yield (key,), count(use)

    return Family(name, "counter", ("key",), help, read)


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


FAMILIES: tuple[Family, ...] = (
    Family(
        "prefixgate_build_info",
        "gauge",
        ("version",),
        "Always 1; which version runs.",
        lambda scrape: [((scrape.sources.version,), 1)],
        "max",
    ),
    Family(
        "prefixgate_policy_info",
        "gauge",
        ("policy",),
        "Always 1; which routing policy is in use.",
        lambda scrape: [((scrape.sources.policy(),), 1)],
        "max",
    ),
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
    # backends
    Family(
        "prefixgate_backend_up",
        "gauge",
        ("backend",),
        "1 when the backend is healthy and takes requests, else 0.",
        lambda scrape: (
            ((backend.id,), int(backend.state == "healthy")) for backend in scrape.sources.backends
        ),
        "min",
    ),
    Family(
        "prefixgate_backend_state",
        "gauge",
        ("backend", "state"),
        "1 for the state that the backend is in.",
        lambda scrape: (
            ((backend.id, str(backend.state)), 1) for backend in scrape.sources.backends
        ),
        "max",
    ),
    Family(
        "prefixgate_backend_ejections_total",
        "counter",
        ("backend",),
        "How often the backend was taken out for failing.",
        lambda scrape: (
            ((backend,), series.ejections) for backend, series in scrape.metrics.backends.items()
        ),
    ),
    _reported(
        "prefixgate_backend_reported_running",
        "Requests in the engine's batch, whoever sent them, as it says.",
        lambda reported: reported.running,
    ),
    _reported(
        "prefixgate_backend_reported_waiting",
        "Requests in the engine's own queue, as it says.",
        lambda reported: reported.waiting,
    ),
    _reported(
        "prefixgate_backend_reported_kv_use",
        "Share of the engine's KV cache that is in use, as it says, 0 to 1.",
        lambda reported: reported.kv_use,
    ),
    Family(
        "prefixgate_backend_load_age_seconds",
        "gauge",
        ("backend",),
        "Since the engine last told its load.",
        _load_age,
        "max",
    ),
    Family(
        "prefixgate_backend_load_failures_total",
        "counter",
        ("backend",),
        "How often the engine was asked for its load and did not tell.",
        lambda scrape: (
            ((backend,), series.load_failures)
            for backend, series in scrape.metrics.backends.items()
        ),
    ),
    Family(
        "prefixgate_backend_breaker_state",
        "gauge",
        ("backend", "state"),
        "1 for the state that the backend's breaker is in: closed, open or half_open.",
        lambda scrape: (
            ((backend.id, str(backend.breaker.state)), 1) for backend in scrape.sources.backends
        ),
        "max",
    ),
    Family(
        "prefixgate_backend_breaker_failures",
        "gauge",
        ("backend",),
        "Requests that failed by the backend's fault within the breaker's window.",
        lambda scrape: (
            ((backend.id,), backend.breaker.failures) for backend in scrape.sources.backends
        ),
        "max",
    ),
    Family(
        "prefixgate_backend_busy",
        "gauge",
        ("backend",),
        "1 while the backend is avoided because it said that it has too much to do.",
        lambda scrape: (
            ((backend.id,), int(backend.busy is not None)) for backend in scrape.sources.backends
        ),
        "max",
    ),
    Family(
        "prefixgate_upstream_errors_total",
        "counter",
        ("backend", "kind"),
        "Exchanges with the backend that failed or were refused, by what went wrong.",
        _upstream_errors,
    ),
    Family(
        "prefixgate_retries_total",
        "counter",
        (),
        "Requests sent to another backend after one had refused or failed them",
        lambda scrape: [((), scrape.metrics.retries)],
    ),
    Family(
        "prefixgate_upstream_redials_total",
        "counter",
        (),
        "Requests sent again because a reused connection was already dead.",
        lambda scrape: [((), scrape.metrics.redials)],
    ),
    # discovery
    _discovery(
        "prefixgate_discovery_entries",
        "gauge",
        "Backends that the source names.",
        lambda reading: reading.entries,
    ),
    _discovery(
        "prefixgate_discovery_unreachable",
        "gauge",
        "Of these, the ones that do not answer their probes.",
        lambda reading: reading.unreachable,
    ),
    _discovery(
        "prefixgate_discovery_age_seconds",
        "gauge",
        "Time since the source's list was last read.",
        lambda reading: reading.age,
    ),
    _discovery(
        "prefixgate_discovery_failures_total",
        "counter",
        "How often the source's list could not be read.",
        lambda reading: reading.feed.failures,
    ),
    # prefix index
    Family(
        "prefixgate_index_nodes",
        "gauge",
        (),
        "Nodes of the prefix tree.",
        lambda scrape: [((), scrape.index.nodes)],
        "max",
    ),
    Family(
        "prefixgate_index_blocks",
        "gauge",
        ("backend",),
        "Blocks that the backend is believed to hold.",
        lambda scrape: (
            ((backend,), holding.blocks) for backend, holding in scrape.index.backends.items()
        ),
        "max",
    ),
    Family(
        "prefixgate_index_tokens",
        "gauge",
        ("backend",),
        "Prompt tokens that the backend is believed to hold.",
        lambda scrape: (
            ((backend,), holding.tokens) for backend, holding in scrape.index.backends.items()
        ),
        "max",
    ),
    Family(
        "prefixgate_index_evicted_blocks_total",
        "counter",
        (),
        "Blocks evicted, for a backend's capacity or the index's bound.",
        lambda scrape: [((), scrape.index.evicted_blocks)],
    ),
    Family(
        "prefixgate_index_bookings",
        "gauge",
        (),
        "Prefixes booked for requests that no backend has accepted yet.",
        lambda scrape: [((), scrape.index.bookings)],
        "sum",
    ),
    Family(
        "prefixgate_index_capacity_tokens",
        "gauge",
        ("backend",),
        "Prompt tokens that the backend is believed to have room for.",
        lambda scrape: (
            ((backend,), holding.capacity_tokens)
            for backend, holding in scrape.index.backends.items()
        ),
        "max",
    ),
    # estimates
    Family(
        "prefixgate_estimates_total",
        "counter",
        ("estimate",),
        "Predictions that were put to the test.",
        lambda scrape: (
            ((str(estimate),), errors.count) for estimate, errors in scrape.sources.errors().items()
        ),
    ),
    Family(
        "prefixgate_estimate_errors_total",
        "counter",
        ("estimate", "direction"),
        "Their relative errors, added up, by sign.",
        _estimate_errors,
    ),
    Family(
        "prefixgate_bytes_per_token",
        "gauge",
        ("model",),
        "Key bytes of a prompt token, as learnt.",
        _bytes_per_token,
        "mean",
    ),
    Family(
        "prefixgate_prefill_tokens_per_second",
        "gauge",
        ("backend",),
        "Uncached prompt tokens that the backend prefills alone, as learnt.",
        lambda scrape: (((load.id,), load.prefill_rate) for load in scrape.sources.loads),
        "mean",
    ),
    Family(
        "prefixgate_decode_step_seconds",
        "gauge",
        ("backend",),
        "A decode step of a single short stream, as learnt.",
        lambda scrape: (((load.id,), load.step_seconds) for load in scrape.sources.loads),
        "mean",
    ),
    # API keys
    Family(
        "prefixgate_auth_failures_total",
        "counter",
        ("reason",),
        "Requests that were not let in, by why.",
        _auth_failures,
    ),
    _of_keys(
        "prefixgate_key_requests_total",
        "Requests that were let in with the API key.",
        lambda use: use.requests_total,
    ),
    _of_keys(
        "prefixgate_key_tokens_total",
        "Prompt and output tokens that the API key was charged.",
        lambda use: use.tokens_charged,
    ),
    Family(
        "prefixgate_limited_requests_total",
        "counter",
        ("key", "limit"),
        "Requests that a limit of the API key held back.",
        _limited,
    ),
    *SHARED_FAMILIES,
    # the process
    Family(
        "prefixgate_workers",
        "gauge",
        ("state",),
        "Processes that these metrics are of: serving, silent (as last heard) or starting.",
        lambda _: [(("serving",), 1), (("silent",), 0), (("starting",), 0)],
        "sum",
    ),
    Family(
        "prefixgate_event_loop_lag_seconds",
        "histogram",
        (),
        "By how much the event loop ran its timers late.",
        lambda scrape: [((), scrape.metrics.loop_lag)],
    ),
    Family(
        "prefixgate_config_reloads_total",
        "counter",
        ("result",),
        "Attempts to load the settings anew.",
        lambda scrape: (
            ((result,), count) for result, count in scrape.metrics.config_reloads.items()
        ),
    ),
    Family(
        "prefixgate_config_last_reload_successful",
        "gauge",
        (),
        "1 unless the last attempt to load the settings anew was refused.",
        lambda scrape: [((), float(scrape.metrics.config_is_current))],
        "min",
    ),
    Family(
        "prefixgate_config_last_success_timestamp_seconds",
        "gauge",
        (),
        "When the settings were last loaded without error, since 1970.",
        lambda scrape: [((), scrape.metrics.config_loaded)],
        "min",
    ),
    Family(
        "prefixgate_overrides",
        "gauge",
        ("held",),
        "Things that were set over the admin API.",
        lambda scrape: (((held,), count) for held, count in scrape.sources.overrides().items()),
        "max",
    ),
)
