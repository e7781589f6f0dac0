"""The routes that do not compute: health, models, metrics, tokenizing, resetting the cache."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from loadtests.sim import tokens
from loadtests.sim.calls import ApiError, Models, Reader
from loadtests.sim.engine import Engine
from loadtests.sim.metrics import EngineMetrics

VERSION = "0.33.0"
"""Of vLLM: the release whose behaviour this follows."""


def control_app(
    engine: Engine,
    reader: Reader,
    metrics: EngineMetrics,
    load: Callable[[], int],
    further: Sequence[Route] = (),
    ended: Callable[[], Awaitable[None]] | None = None,
) -> Starlette:
    """
    Args:
        load: how many requests are being answered.
        further: routes.
        ended: called when the server goes down.
    """
    cards = _model_cards(reader.models, reader.max_model_len)

    async def alive(request: Request) -> Response:
        return Response()

    async def version(request: Request) -> Response:
        return _json({"version": VERSION})

    async def server_load(request: Request) -> Response:
        return _json({"server_load": load()})

    async def models(request: Request) -> Response:
        return _json({"object": "list", "data": cards})

    async def show_metrics(request: Request) -> Response:
        kind = "text/plain; version=0.0.4; charset=utf-8"
        return Response(metrics.text(engine), headers={"content-type": kind})

    async def tokenize(request: Request) -> Response:
        ids = tokens.unpack(reader.tokenize(await request.body()))
        limit = reader.max_model_len
        return _json({"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None})

    async def detokenize(request: Request) -> Response:
        return _json({"prompt": reader.detokenize(await request.body())})

    async def reset(request: Request) -> Response:
        return _json({"success": engine.cache.reset()})

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return _json(error.body(), error.status)

    async def not_found(request: Request, error: Exception) -> Response:
        return _json({"detail": "Not Found"}, 404)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if ended is not None:
            await ended()

    return Starlette(
        lifespan=lifespan,
        routes=[
            Route("/health", alive),
            Route("/ping", alive, methods=["GET", "POST"]),
            Route("/version", version),
            Route("/load", server_load),
            Route("/v1/models", models),
            Route("/metrics", show_metrics),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
            Route("/reset_prefix_cache", reset, methods=["POST"]),
            *further,
        ],
        exception_handlers={ApiError: refused, 404: not_found},
    )


def _model_cards(models: Models, max_model_len: int) -> list[dict[str, Any]]:
    base = models.names[0]
    created = int(time.time())
    parents = dict.fromkeys(models.names) | dict.fromkeys(models.adapters, base)
    return [
        {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": name if parent else base,
            "parent": parent,
            "max_model_len": None if parent else max_model_len,
        }
        for name, parent in parents.items()
    ]


def _json(data: dict[str, Any], status: int = 200) -> Response:
    return Response(msgspec.json.encode(data), status, media_type="application/json")
