"""Finding out what kind of engine listens at an address, and what it says about itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from gateway.fleet.engines.engine import UNKNOWN_CACHE, Cache, Engine
from gateway.fleet.engines.pages import version
from gateway.fleet.engines.table import ENGINES
from gateway.fleet.facts import EngineFacts, ModelList
from gateway.fleet.page import NoPage, PageReader
from gateway.types import EngineKind

MODELS = "/v1/models"


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
    engine = ENGINES[kind]
    health_path = await _health_path(pages, engine)
    cache = await _cache(pages, engine)
    facts = EngineFacts(
        kind,
        health_path,
        capacity_tokens=cache.capacity_tokens,
        block_size=cache.block_size,
        started=cache.started,
        flipped=cache.flipped,
        cache_dtype=cache.dtype,
        version=cache.version or await _version(pages, engine),
        chunk_tokens=cache.chunk_tokens,
    )
    return facts if models is None else with_models(facts, models)


def with_models(facts: EngineFacts, models: ModelList) -> EngineFacts:
    """The facts, with what a model list says."""
    return replace(
        facts,
        models=models.ids(ENGINES[facts.kind]),
        max_model_len=models.lengths,
        adapters=models.adapters,
    )


async def _identify(pages: PageReader, *, guarded: bool) -> EngineKind:
    """The kind of a server whose model list no known engine has signed.

    Args:
        guarded: the list asks for a key.
    """
    marks = [(kind, engine.mark) for kind, engine in ENGINES.items() if engine.mark is not None]
    found = await asyncio.gather(*(pages.find(mark.path) for _, mark in marks))
    for (kind, mark), page in zip(marks, found, strict=True):
        if mark.shown_by(page) and (guarded or not mark.if_guarded):
            return kind
    return EngineKind.OPENAI


async def _health_path(pages: PageReader, engine: Engine) -> str:
    candidates = (*engine.health_paths, MODELS)
    for path in candidates:
        if (await pages.get(path)).exists:
            return path
    hint = ""
    if pages.base_path.endswith("/v1"):
        hint = "; a backend's url is given without the /v1 of its API"
    raise NoPage(f"the address leads nowhere: none of {', '.join(candidates)} is below it{hint}")


async def _cache(pages: PageReader, engine: Engine) -> Cache:
    for path, read in engine.cache_pages.items():
        page = await pages.find(path)
        if page is not None and page.exists:
            return read(page)
    return UNKNOWN_CACHE


async def _version(pages: PageReader, engine: Engine) -> str:
    return version(await pages.find(engine.version_path)) if engine.version_path else ""
