"""llama.cpp's llama-server.

Of its KV cache it says nothing that tells how full it is: what older builds call
kv_cache_usage_ratio counts what idle slots have cached.
"""

from __future__ import annotations

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
from gateway.fleet.engines.numbers import positive
from gateway.fleet.page import Page
from gateway.types import EngineKind


class _Generation(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    total_slots: int
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)


class _Slot(msgspec.Struct):
    is_processing: bool


def is_llamacpp(page: Page | None) -> bool:
    """Whether a /props is a llama-server's."""
    return page is not None and page.read(_Props) is not None


def cache(page: Page) -> Cache:
    """Of its /props: its slots' contexts together."""
    props = page.read(_Props)
    if props is None:
        return UNKNOWN_CACHE
    slots, context = (
        positive(props.total_slots),
        positive(props.default_generation_settings.n_ctx),
    )
    return Cache(positive(slots * context) if slots and context else None)


def load(page: Page) -> EngineLoad:
    """Of its /metrics, which is there with --metrics."""
    metrics = Exposition(page.body)
    return EngineLoad(
        running=metrics.count("llamacpp:requests_processing"),
        waiting=metrics.count("llamacpp:requests_deferred"),
        work=metrics.work("llamacpp:prompt_tokens_total"),
    )


def slots(page: Page) -> EngineLoad:
    """Of its /slots, which is there without --no-slots."""
    found = page.read(list[_Slot])
    if found is None:
        return UNKNOWN_LOAD
    return EngineLoad(running=sum(slot.is_processing for slot in found))


LLAMACPP = Engine(
    EngineKind.LLAMACPP,
    owner="llamacpp",
    mark=Mark("/props", is_llamacpp),
    cache_pages={"/props": cache},
    load_pages={"/metrics": load, "/slots": slots},
    load_flag="--metrics",
)
