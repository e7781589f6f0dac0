"""Metrics of backends, and of the sources that name them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.telemetry.family import Family, Kind, Labels, Scrape, Value
from gateway.telemetry.sources import FeedReading, ReportedView


def _upstream_errors(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for backend, series in scrape.metrics.backends.items():
        for kind, count in series.errors.items():
            yield (backend, str(kind)), count


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


BACKEND_FAMILIES: tuple[Family, ...] = (
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
)
