"""Metrics of handovers between prefill and decode engines."""

from __future__ import annotations

from collections.abc import Iterator

from gateway.telemetry.family import Family, Labels, Scrape, Value


def _placements(scrape: Scrape) -> Iterator[tuple[Labels, Value]]:
    yield from scrape.metrics.placements.items()


HANDOVER_FAMILIES: tuple[Family, ...] = (
    Family(
        "prefixgate_pd_requests_total",
        "counter",
        ("placement", "reason"),
        "Routed requests of models that prefill engines serve, by where they were prefilled.",
        _placements,
    ),
    Family(
        "prefixgate_pd_fallback_total",
        "counter",
        ("reason",),
        "Requests that were to be handed over and were served by one engine, by why.",
        lambda scrape: (((reason,), count) for reason, count in scrape.metrics.fallbacks.items()),
    ),
    Family(
        "prefixgate_pd_prefill_leg_seconds",
        "histogram",
        (),
        "From a prefill leg's dispatch to its answer, where the decode leg waited for it.",
        lambda scrape: [((), scrape.metrics.prefill_legs)],
    ),
    Family(
        "prefixgate_pd_kv_bytes_total",
        "counter",
        (),
        "KV cache moved from prefill engines to decode engines, of models whose shape is known.",
        lambda scrape: [((), scrape.metrics.kv_bytes)],
    ),
    Family(
        "prefixgate_pd_transfer_observed_seconds",
        "histogram",
        (),
        "From the end of a prefill leg to the decode engine's first content, less a step.",
        lambda scrape: [((), scrape.metrics.transfers_observed)],
    ),
    Family(
        "prefixgate_pd_transfer_predicted_seconds",
        "histogram",
        (),
        "What was expected of those, where the model's shape is known.",
        lambda scrape: [((), scrape.metrics.transfers_predicted)],
    ),
    Family(
        "prefixgate_pd_wasted_prefills_total",
        "counter",
        ("reason",),
        "Prefill legs whose result nobody fetched, by why.",
        lambda scrape: (
            ((reason,), count) for reason, count in scrape.metrics.wasted_prefills.items()
        ),
    ),
    Family(
        "prefixgate_pd_released_total",
        "counter",
        (),
        "Prompts that a prefill engine held for nobody, and was told to let go of.",
        lambda scrape: [((), scrape.metrics.releases)],
    ),
    Family(
        "prefixgate_pd_orphaned_total",
        "counter",
        ("reason",),
        "Prompts that a prefill engine holds or may hold for nobody, untold, by why.",
        lambda scrape: (((reason,), count) for reason, count in scrape.metrics.orphaned.items()),
    ),
)
