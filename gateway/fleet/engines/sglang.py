"""SGLang."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.fleet.engines.engine import (
    UNKNOWN_CACHE,
    UNKNOWN_LOAD,
    Cache,
    Engine,
    EngineLoad,
    Mark,
)
from gateway.fleet.engines.exposition import Exposition
from gateway.fleet.engines.numbers import count, positive, share, total
from gateway.fleet.engines.pages import dtype
from gateway.fleet.page import Page
from gateway.types import EngineKind, Priority


class _ServerInfo(msgspec.Struct):
    page_size: int | None = None
    max_total_num_tokens: int | None = None
    schedule_low_priority_values_first: bool | None = None
    kv_cache_dtype: Any = None
    version: Any = None
    chunked_prefill_size: Any = None


class _Rank(msgspec.Struct):
    num_running_reqs: float
    num_waiting_reqs: float
    num_waiting_uncached_tokens: float | None = None
    token_usage: float | None = None
    total_prefill_uncached_tokens: float | None = None


class _Loads(msgspec.Struct):
    loads: list[_Rank]


def is_sglang(page: Page | None) -> bool:
    """Whether a /server_info is an SGLang's; TensorRT-LLM has a page of that name too."""
    info = page.read(_ServerInfo) if page is not None else None
    return info is not None and info.page_size is not None


def cache(page: Page) -> Cache:
    """Of its /server_info."""
    info = page.read(_ServerInfo)
    if info is None:
        return UNKNOWN_CACHE
    chunk = info.chunked_prefill_size
    return Cache(
        positive(info.max_total_num_tokens),
        positive(info.page_size),
        flipped=bool(info.schedule_low_priority_values_first),
        dtype=dtype(info.kv_cache_dtype),
        version=info.version if isinstance(info.version, str) else "",
        chunk_tokens=positive(chunk) if isinstance(chunk, int) else None,  # -1: in one piece
    )


def loads(page: Page) -> EngineLoad:
    """Of its /v1/loads: one entry for each data-parallel rank."""
    ranks = page.read(_Loads)
    if ranks is None or not ranks.loads:
        return UNKNOWN_LOAD
    uncached = [rank.num_waiting_uncached_tokens for rank in ranks.loads]
    used = [use for rank in ranks.loads if (use := share(rank.token_usage)) is not None]
    done = [rank.total_prefill_uncached_tokens for rank in ranks.loads]
    return EngineLoad(
        running=count(sum(rank.num_running_reqs for rank in ranks.loads)),
        waiting=count(sum(rank.num_waiting_reqs for rank in ranks.loads)),
        waiting_tokens=count(total([tokens for tokens in uncached if tokens is not None])),
        kv_use=sum(used) / len(used) if used else None,
        work=total([tokens for tokens in done if tokens is not None]),
    )


def metrics(page: Page) -> EngineLoad:
    """Of the /metrics of releases without /v1/loads; it is there with --enable-metrics."""
    found = Exposition(page.body)
    return EngineLoad(
        running=found.count("sglang:num_running_reqs", "sglang_num_running_reqs"),
        waiting=found.count("sglang:num_queue_reqs", "sglang_num_queue_reqs"),
        kv_use=found.share("sglang:token_usage", "sglang_token_usage"),
        started=found.started,
        work=found.work("sglang:prompt_tokens_total", "sglang_prompt_tokens_total"),
    )


SGLANG = Engine(
    EngineKind.SGLANG,
    owner="sglang",
    mark=Mark("/server_info", is_sglang),
    # Its /health generates a token, so it is slow when the engine is merely busy.
    health_paths=("/ready", "/health"),
    cache_pages={"/server_info": cache, "/get_server_info": cache},
    load_pages={"/v1/loads": loads, "/metrics": metrics},
    load_flag="--enable-metrics",
    # The higher goes first, or the lower with --schedule-low-priority-values-first.
    priorities={Priority.HIGH: 1, Priority.LOW: -1},
    adapter_name=lambda base, adapter: f"{base}:{adapter}",
)
