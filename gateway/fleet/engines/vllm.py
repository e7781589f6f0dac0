"""vLLM."""

from __future__ import annotations

from gateway.fleet.engines.engine import UNKNOWN_CACHE, Cache, Engine, EngineLoad, Mark
from gateway.fleet.engines.exposition import Exposition
from gateway.fleet.engines.numbers import positive, whole
from gateway.fleet.engines.pages import dtype, has_version
from gateway.fleet.page import Page
from gateway.types import EngineKind, Priority


def cache(page: Page) -> Cache:
    """Of its /metrics. With data parallelism each rank has a cache of its own: their sum."""
    if page.status != 200:
        return UNKNOWN_CACHE
    metrics = Exposition(page.body)
    total, block_size, kept = 0, None, ""
    for labels, _ in metrics.series("vllm:cache_config_info"):
        block_size = whole(labels.get("block_size"))
        kept = dtype(labels.get("cache_dtype"))
        tokens = whole(labels.get("kv_cache_size_tokens"))
        blocks = whole(labels.get("num_gpu_blocks"))
        if tokens is None and blocks is not None and block_size is not None:
            tokens = blocks * block_size
        total += tokens or 0
    return Cache(positive(total), block_size, metrics.started, dtype=kept)


def load(page: Page) -> EngineLoad:
    """Of its /metrics, which is empty with --disable-log-stats."""
    metrics = Exposition(page.body)
    return EngineLoad(
        running=metrics.count("vllm:num_requests_running"),
        waiting=metrics.count("vllm:num_requests_waiting"),
        # The second name is that of releases before 0.12.
        kv_use=metrics.share("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        started=metrics.started,
        work=metrics.work("vllm:prompt_tokens_total"),
    )


VLLM = Engine(
    EngineKind.VLLM,
    owner="vllm",
    # With an API key set, it guards its model list but not its version.
    mark=Mark("/version", has_version, if_guarded=True),
    cache_pages={"/metrics": cache},
    version_path="/version",
    load_pages={"/metrics": load},
    load_flag="without --disable-log-stats",
    # The lower goes first; 0, which it assumes, is normal. The steps are small, so that it throws
    # out nothing that runs for what comes.
    priorities={Priority.HIGH: -1, Priority.LOW: 1},
)
