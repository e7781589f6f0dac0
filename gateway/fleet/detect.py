"""Finding out what kind of engine listens at an address, and what it says about itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.fleet import facts
from gateway.fleet.facts import Cache, EngineFacts, ModelList
from gateway.fleet.page import NoPage, Page, PageReader
from gateway.types import EngineKind

MODELS = "/v1/models"

HEALTH_PATHS = {
    # /health of SGLang generates a token, so it is slow when the engine is merely busy.
    EngineKind.SGLANG: ("/ready", "/health"),
    EngineKind.OLLAMA: ("/api/version",),
}
_USUAL_HEALTH = ("/health",)

_CACHE_PAGES: dict[EngineKind, tuple[tuple[str, ...], Callable[[Page | None], Cache]]] = {
    # Only of engines known to have it: reading TensorRT-LLM's /metrics empties it for others.
    EngineKind.VLLM: (("/metrics",), facts.vllm_cache),
    EngineKind.SGLANG: (("/server_info", "/get_server_info"), facts.sglang_cache),
    EngineKind.LLAMACPP: (("/props",), facts.llamacpp_cache),
}


async def detect(pages: PageReader, kind: EngineKind | None = None) -> EngineFacts:
    """What listens there.

    A page that is missing, slow or broken costs the facts that it would have brought, no more.

    Args:
        kind: the engine, where it is known already.

    Raises:
        NoPage: the server cannot be reached, or has not so much as a page that tells its health.
    """
    page = await (pages.get(MODELS) if kind is None else pages.find(MODELS))
    models = page.read(ModelList) if page is not None else None
    if kind is None:
        signed = models.kind if models is not None else None
        kind = signed or await _identify(pages, guarded=page is not None and page.status == 401)
    health_path = await _health_path(pages, kind)
    cache = await _cache(pages, kind)
    return EngineFacts(
        kind,
        health_path,
        models.ids if models is not None else None,
        models.lengths if models is not None else {},
        cache.capacity_tokens,
        cache.block_size,
        cache.started,
    )


async def _identify(pages: PageReader, *, guarded: bool) -> EngineKind:
    """The kind of a server whose model list no known engine has signed.

    Args:
        guarded: the list asks for a key.
    """
    server_info, props, info, ollama, version = await asyncio.gather(
        *map(pages.find, ("/server_info", "/props", "/info", "/api/version", "/version"))
    )
    if facts.is_sglang(server_info):
        return EngineKind.SGLANG
    if facts.is_llamacpp(props):
        return EngineKind.LLAMACPP
    if facts.is_tgi(info):
        return EngineKind.TGI
    if facts.has_version(ollama):
        return EngineKind.OLLAMA
    if guarded and facts.has_version(version):
        # With an API key set, vLLM guards its model list but not its version.
        return EngineKind.VLLM
    return EngineKind.OPENAI


async def _health_path(pages: PageReader, kind: EngineKind) -> str:
    candidates = (*HEALTH_PATHS.get(kind, _USUAL_HEALTH), MODELS)
    for path in candidates:
        if (await pages.get(path)).exists:
            return path
    raise NoPage(f"the address leads nowhere: none of {', '.join(candidates)} is below it")


async def _cache(pages: PageReader, kind: EngineKind) -> Cache:
    if kind not in _CACHE_PAGES:
        return facts.UNKNOWN_CACHE
    paths, read = _CACHE_PAGES[kind]
    for path in paths:
        page = await pages.find(path)
        if page is not None and page.exists:
            return read(page)
    return facts.UNKNOWN_CACHE
