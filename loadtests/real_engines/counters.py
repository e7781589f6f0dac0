"""What engines and the gateway count about prefix caches, read off their /metrics."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import httpx
from prometheus_client.parser import text_string_to_metric_families


@dataclass(slots=True, frozen=True)
class Counters:
    """Since the engine's start: prompt tokens looked up in the cache, and those found there."""

    queries: int
    hits: int

    def since(self, before: Counters) -> Counters:
        return Counters(self.queries - before.queries, self.hits - before.hits)


def read_counters(url: str) -> Counters:
    """Of the vLLM at `url`.

    Raises:
        httpx.HTTPError: it does not answer.
    """
    totals = _totals(url)
    return Counters(
        int(totals["vllm:prefix_cache_queries_total"]),
        int(totals["vllm:prefix_cache_hits_total"]),
    )


@dataclass(slots=True, frozen=True)
class Estimate:
    """What a gateway counted since its start.

    Attributes:
        cached: tokens that engines told to have found cached.
        error: difference from what it expected, in engine tokens, a request on average.
    """

    cached: int
    error: float


def read_estimate(url: str) -> Estimate:
    """Of the gateway at `url`.

    Raises:
        httpx.HTTPError: it does not answer.
    """
    totals = _totals(url)
    requests = totals["prefixgate_cached_tokens_error_count"]
    return Estimate(
        int(totals["prefixgate_reported_cached_tokens_total"]),
        totals["prefixgate_cached_tokens_error_sum"] / max(requests, 1.0),
    )


def _totals(url: str) -> defaultdict[str, float]:
    """By name, the sum of a metric's samples; 0 for one that is not there."""
    page = httpx.get(f"{url}/metrics", trust_env=False)
    page.raise_for_status()
    totals: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            totals[sample.name] += sample.value
    return totals
