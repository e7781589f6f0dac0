"""Hugging Face's Text Generation Inference."""

from __future__ import annotations

import msgspec

from gateway.fleet.engines.engine import UNKNOWN_CACHE, Cache, Engine, EngineLoad, Mark
from gateway.fleet.engines.exposition import Exposition
from gateway.fleet.engines.numbers import positive
from gateway.fleet.page import Page
from gateway.types import EngineKind


class _Info(msgspec.Struct):
    model_id: str
    max_batch_total_tokens: int | None = None


def is_tgi(page: Page | None) -> bool:
    """Whether an /info is a TGI's."""
    return page is not None and page.read(_Info) is not None


def cache(page: Page) -> Cache:
    """Of its /info: the tokens that a batch may have is what its KV cache has room for."""
    info = page.read(_Info)
    return UNKNOWN_CACHE if info is None else Cache(positive(info.max_batch_total_tokens))


def load(page: Page) -> EngineLoad:
    metrics = Exposition(page.body)
    return EngineLoad(
        running=metrics.count("tgi_batch_current_size"),
        waiting=metrics.count("tgi_queue_size"),
        work=metrics.work("tgi_request_count"),
    )


TGI = Engine(
    EngineKind.TGI,
    mark=Mark("/info", is_tgi),
    cache_pages={"/info": cache},
    load_pages={"/metrics": load},
)
