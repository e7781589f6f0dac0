"""What an engine counts about its own prefix cache."""

from __future__ import annotations

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
    page = httpx.get(f"{url}/metrics", trust_env=False)
    page.raise_for_status()
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(page.text):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return Counters(
        int(totals.get("vllm:prefix_cache_queries_total", 0)),
        int(totals.get("vllm:prefix_cache_hits_total", 0)),
    )
