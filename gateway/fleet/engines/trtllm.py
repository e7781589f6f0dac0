"""TensorRT-LLM's trtllm-serve.

Its /metrics is a queue: whoever reads it takes the entries away from everybody else. It is never
read here; /prometheus/metrics tells the same.
"""

from __future__ import annotations

from gateway.fleet.engines.engine import UNKNOWN_CACHE, Cache, Engine, EngineLoad
from gateway.fleet.engines.exposition import Exposition
from gateway.fleet.engines.numbers import positive
from gateway.fleet.page import Page
from gateway.types import EngineKind

_PAGE = "/prometheus/metrics"


def cache(page: Page) -> Cache:
    if page.status != 200:
        return UNKNOWN_CACHE
    metrics = Exposition(page.body)
    blocks = metrics.count("trtllm_kv_cache_max_blocks")
    block_size = positive(metrics.count("trtllm_kv_cache_tokens_per_block"))
    capacity = blocks * block_size if blocks is not None and block_size is not None else None
    return Cache(positive(capacity), block_size, metrics.started)


def load(page: Page) -> EngineLoad:
    metrics = Exposition(page.body)
    return EngineLoad(
        running=metrics.count("trtllm_num_requests_running"),
        waiting=metrics.count("trtllm_num_requests_waiting"),
        kv_use=metrics.share("trtllm_kv_cache_utilization"),
        started=metrics.started,
        work=metrics.work("trtllm_kv_cache_missed_blocks_total"),
    )


TRTLLM = Engine(
    EngineKind.TRTLLM,
    owner="tensorrt_llm",
    cache_pages={_PAGE: cache},
    load_pages={_PAGE: load},
    load_flag="return_perf_metrics: true",
)
