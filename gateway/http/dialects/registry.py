"""Which dialect a path speaks."""

from __future__ import annotations

from gateway.http.dialects.anthropic import AnthropicMessages
from gateway.http.dialects.base import Dialect
from gateway.http.dialects.cohere import CohereChat
from gateway.http.dialects.generate import Generate, GenerateStream
from gateway.http.dialects.ollama import Ollama
from gateway.http.dialects.openai_chat import OpenAIChat
from gateway.http.dialects.openai_completions import OpenAICompletions
from gateway.http.dialects.openai_embeddings import OpenAIEmbeddings
from gateway.http.dialects.openai_responses import OpenAIResponses
from gateway.http.dialects.passthrough import (
    AnthropicPassThrough,
    PassThrough,
    ResponsesPassThrough,
)
from gateway.http.dialects.rerank import Rerank

_COHERE = CohereChat()
_GENERATE = Generate()
_OLLAMA = Ollama()
_RERANK = Rerank()
_POST: dict[str, Dialect] = {
    "/v1/chat/completions": OpenAIChat(),
    "/v1/completions": OpenAICompletions(),
    "/v1/responses": OpenAIResponses(),
    "/v1/embeddings": OpenAIEmbeddings(),
    "/v1/rerank": _RERANK,
    "/v2/rerank": _RERANK,
    "/rerank": _RERANK,
    "/v1/score": _RERANK,
    "/score": _RERANK,
    "/v1/messages": AnthropicMessages(),
    "/v2/chat": _COHERE,
    "/cohere/v2/chat": _COHERE,
    "/generate": _GENERATE,
    "/generate_stream": GenerateStream(),
    "/completion": _GENERATE,
    "/inference/v1/generate": _GENERATE,
    "/api/chat": _OLLAMA,
    "/api/generate": _OLLAMA,
}
KNOWN = frozenset(_POST)
"""Paths with a dialect of their own."""
_PASS_THROUGH: Dialect = PassThrough()
_ANTHROPIC_PASS_THROUGH: Dialect = AnthropicPassThrough()
_RESPONSES_PASS_THROUGH: Dialect = ResponsesPassThrough()

NAMES = tuple(
    dict.fromkeys(
        dialect.name for dialect in (*_POST.values(), _PASS_THROUGH, _ANTHROPIC_PASS_THROUGH)
    )
)
"""Every dialect's name."""


def takes(method: str, path: str) -> bool:
    """Whether a route can be asked with a method, as far as is known here. Preflights of browsers
    (OPTIONS) are the engine's to answer."""
    return method in ("POST", "OPTIONS") or path not in _POST


def dialect_for(method: str, path: str) -> Dialect:
    """The dialect of a request; a path that is not known passes through.

    Args:
        path: without the query string.
    """
    if method == "POST":
        dialect = _POST.get(path)
        if dialect is not None:
            return dialect
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return _ANTHROPIC_PASS_THROUGH
    if path.startswith("/v1/responses/"):
        return _RESPONSES_PASS_THROUGH
    return _PASS_THROUGH
