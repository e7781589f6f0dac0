"""Metrics of what the gateway believes: of caches, and of what is not said."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.telemetry.family import Family, Labels, Scrape, Value
from gateway.telemetry.metrics import OTHER, UNNAMED


def _estimate_errors(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for estimate, errors in scrape.sources.errors().items():
        yield (str(estimate), "over"), 0.5 * (errors.absolute + errors.signed)
        yield (str(estimate), "under"), 0.5 * (errors.absolute - errors.signed)


def _bytes_per_token(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    for model in scrape.metrics.models:
        if model not in (OTHER, UNNAMED):
            yield (model,), scrape.sources.bytes_per_token(model)


ESTIMATE_FAMILIES: tuple[Family, ...] = (
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
)
