"""Every metric of the gateway, in one table: name, type, labels, meaning, and where it is read.

`docs/metrics.md` explains them; a test holds the two together. Label values come from closed sets
or from the fleet, never from clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.telemetry.backend_families import BACKEND_FAMILIES
from gateway.telemetry.estimate_families import ESTIMATE_FAMILIES
from gateway.telemetry.family import Family, Labels, Scrape, Value
from gateway.telemetry.handover_families import HANDOVER_FAMILIES
from gateway.telemetry.request_families import REQUEST_FAMILIES
from gateway.telemetry.shared_families import SHARED_FAMILIES
from gateway.telemetry.sources import KeyUse


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
    *REQUEST_FAMILIES,
    *HANDOVER_FAMILIES,
    *BACKEND_FAMILIES,
    *ESTIMATE_FAMILIES,
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
