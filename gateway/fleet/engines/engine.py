"""What the gateway has to know of a kind of engine. Pure: pages in, facts out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.fleet.page import Page
from gateway.types import EngineKind, Priority


@dataclass(slots=True, frozen=True)
class Cache:
    """What an engine says of its KV cache, its process and how it was started.

    Attributes:
        capacity_tokens: size of the KV cache, None when the engine does not say.
        block_size: tokens of one cache block, None when the engine does not say.
        started: when its process started, unix seconds.
        flipped: it takes priorities the other way round than its kind usually does.
        dtype: of the numbers in the cache, "" when the engine does not say or goes by the model's.
        version: of the engine, "" when the page does not say.
        chunk_tokens: prompt tokens that a step takes at most, None when the engine does not say.
    """

    capacity_tokens: int | None = None
    block_size: int | None = None
    started: float | None = None
    flipped: bool = False
    dtype: str = ""
    version: str = ""
    chunk_tokens: int | None = None


UNKNOWN_CACHE = Cache()


@dataclass(slots=True, frozen=True)
class EngineLoad:
    """What an engine says of its load at one moment. None where it does not say.

    Attributes:
        running: requests in its batch.
        waiting: requests in its own queue.
        waiting_tokens: uncached prompt tokens of those.
        kv_use: share of the KV cache that is in use, 0 to 1. What is cached and could be thrown out
            does not count.
        started: when its process started, unix seconds.
        work: a count that grows with the work done and begins anew with the process.
    """

    running: int | None = None
    waiting: int | None = None
    waiting_tokens: int | None = None
    kv_use: float | None = None
    started: float | None = None
    work: float | None = None

    @property
    def says_nothing(self) -> bool:
        return self.running is None and self.waiting is None and self.kv_use is None


UNKNOWN_LOAD = EngineLoad()


@dataclass(slots=True, frozen=True)
class Mark:
    """A page by which a kind of engine is told where its model list does not tell it.

    Attributes:
        shown_by: whether the page is this kind's.
        if_guarded: tells only where the model list asks for a key.
    """

    path: str
    shown_by: Callable[[Page | None], bool]
    if_guarded: bool = False


@dataclass(slots=True, frozen=True)
class Engine:
    """One kind of engine.

    Attributes:
        owner: how it signs the entries of its model list; None when it does not.
        mark: how else it is told.
        health_paths: pages that tell cheaply whether it serves; the first one that exists counts.
        cache_pages: by path, in the order in which they are tried, what reads them.
        version_path: a page that tells its version, where the cache's page does not; "" for none.
        load_pages: the same for its load. Each of them may be read at any time by any number of
            readers, and costs the engine next to nothing.
        load_flag: what it has to be started with to show its load; "" when it always does.
        priorities: how its own `priority` field says what clients may say of a request.
        adapter_name: how requests name a LoRA adapter that the model list has under its bare name.
    """

    kind: EngineKind
    owner: str | None = None
    mark: Mark | None = None
    health_paths: tuple[str, ...] = ("/health",)
    cache_pages: Mapping[str, Callable[[Page], Cache]] = field(default_factory=dict)
    version_path: str = ""
    load_pages: Mapping[str, Callable[[Page], EngineLoad]] = field(default_factory=dict)
    load_flag: str = ""
    priorities: Mapping[Priority, int] = field(default_factory=dict)
    adapter_name: Callable[[str, str], str] | None = None
