"""The routes whose requests can be handed over."""

from __future__ import annotations

from enum import StrEnum


class Route(StrEnum):
    """By the schema of its bodies."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    GENERATE = "generate"
    """SGLang's own /generate."""
    TOKENS = "tokens"
    """vLLM's /inference/v1/generate: token ids in, token ids out."""


_ROUTES = {
    "/v1/chat/completions": Route.CHAT,
    "/v1/completions": Route.COMPLETIONS,
    "/v1/responses": Route.RESPONSES,
    "/v1/messages": Route.MESSAGES,
    "/generate": Route.GENERATE,
    "/inference/v1/generate": Route.TOKENS,
}


def route_of(method: str, path: str) -> Route | None:
    """None: such requests are served by one engine.

    Args:
        path: without the query string.
    """
    return _ROUTES.get(path) if method == "POST" else None
