"""What an engine says about itself, read out of its pages. Pure: pages in, facts out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from gateway.fleet.page import Page
from gateway.types import EngineKind

OWNERS = {
    "vllm": EngineKind.VLLM,
    "sglang": EngineKind.SGLANG,
    "llamacpp": EngineKind.LLAMACPP,
    "tensorrt_llm": EngineKind.TRTLLM,
}
"""How engines sign the entries of their model list."""


@dataclass(slots=True, frozen=True)
class EngineFacts:
    """Attributes:
    kind: the engine.
    health_path: the page that tells cheaply whether it serves.
    models: ids that it serves, None when its list could not be read.
    max_model_len: by model, tokens; models of which it is not known are absent.
    capacity_tokens: size of the KV cache, None when the engine does not say.
    block_size: tokens of one cache block, None when the engine does not say.
    started: when its process started, unix seconds; tells a restart from a hiccup.
    """

    kind: EngineKind
    health_path: str
    models: tuple[str, ...] | None = None
    max_model_len: Mapping[str, int] = field(default_factory=dict)
    capacity_tokens: int | None = None
    block_size: int | None = None
    started: float | None = None


@dataclass(slots=True, frozen=True)
class Cache:
    """The part of the facts that is read from each engine's own page."""

    capacity_tokens: int | None = None
    block_size: int | None = None
    started: float | None = None


UNKNOWN_CACHE = Cache()


class ModelCard(msgspec.Struct):
    id: str
    owned_by: str | None = None
    max_model_len: int | None = None


class ModelList(msgspec.Struct):
    """GET /v1/models, as far as it is looked at."""

    data: list[ModelCard]

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(card.id for card in self.data if card.id))

    @property
    def lengths(self) -> dict[str, int]:
        return {card.id: card.max_model_len for card in self.data if card.max_model_len}

    @property
    def kind(self) -> EngineKind | None:
        """None when no known engine signed the list."""
        owners = (OWNERS.get(card.owned_by or "") for card in self.data)
        return next((kind for kind in owners if kind is not None), None)


class _ServerInfo(msgspec.Struct):
    page_size: int | None = None
    max_total_num_tokens: int | None = None


class _Generation(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    total_slots: int
    default_generation_settings: _Generation = msgspec.field(default_factory=_Generation)


class _Info(msgspec.Struct):
    model_id: str


class _Version(msgspec.Struct):
    version: str


def vllm_cache(page: Page | None) -> Cache:
    """Of a vLLM's /metrics. With data parallelism each rank has a cache of its own: their sum."""
    if page is None or page.status != 200:
        return UNKNOWN_CACHE
    text = page.body.decode("utf-8", "replace")
    total = 0
    block_size = None
    for line in _CACHE_CONFIG.finditer(text):
        labels = dict(_LABEL.findall(line[1]))
        block_size = _positive(labels.get("block_size"))
        tokens = _positive(labels.get("kv_cache_size_tokens"))
        blocks = _positive(labels.get("num_gpu_blocks"))
        if tokens is None and blocks is not None and block_size is not None:
            tokens = blocks * block_size
        total += tokens or 0
    started = _STARTED.search(text)
    return Cache(total or None, block_size, float(started[1]) if started else None)


def sglang_cache(page: Page | None) -> Cache:
    """Of an SGLang's /server_info."""
    info = page.read(_ServerInfo) if page is not None else None
    if info is None:
        return UNKNOWN_CACHE
    return Cache(info.max_total_num_tokens or None, info.page_size or None)


def llamacpp_cache(page: Page | None) -> Cache:
    """Of a llama-server's /props: its slots' contexts together."""
    props = page.read(_Props) if page is not None else None
    if props is None or not props.default_generation_settings.n_ctx:
        return UNKNOWN_CACHE
    return Cache(props.total_slots * props.default_generation_settings.n_ctx or None)


def is_sglang(page: Page | None) -> bool:
    """Whether a /server_info is an SGLang's; TensorRT-LLM has a page of that name too."""
    info = page.read(_ServerInfo) if page is not None else None
    return info is not None and info.page_size is not None


def is_llamacpp(page: Page | None) -> bool:
    """Whether a /props is a llama-server's."""
    return page is not None and page.read(_Props) is not None


def is_tgi(page: Page | None) -> bool:
    """Whether an /info is a TGI's."""
    return page is not None and page.read(_Info) is not None


def has_version(page: Page | None) -> bool:
    """Whether the page is a plain version, as /version of vLLM and /api/version of Ollama."""
    return page is not None and page.read(_Version) is not None


_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_STARTED = re.compile(r"^process_start_time_seconds (\d+(?:\.\d+)?(?:e\+?\d{1,2})?)$", re.MULTILINE)


def _positive(text: str | None) -> int | None:
    """Labels are texts, and "None" where the engine has no value."""
    return (
        int(text) if text is not None and text.isascii() and text.isdigit() and int(text) else None
    )
