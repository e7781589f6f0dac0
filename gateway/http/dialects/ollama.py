"""POST /api/chat and /api/generate, which stream lines of JSON unless told not to."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from gateway.http.dialects.base import Body, JsonDialect, count_or_none
from gateway.http.dialects.key import media_key, messages_key
from gateway.http.dialects.usage import Usage, native_usage
from gateway.http.native_scanner import LineScanner
from gateway.http.sse import Grammar, StreamScanner
from gateway.http.stored import Stored
from gateway.types import Prompt

OLLAMA = Grammar(
    re.compile(rb'"(?:content|response|thinking|name)"\s*:\s*"[^"\n]'),
    b"\r",
    re.compile(rb'"done"\s*:\s*true'),
)


class OllamaBody(Body):
    messages: Any = None
    tools: Any = None
    prompt: Any = None
    system: Any = None
    template: Any = None
    context: Any = None
    images: Any = None
    raw: Any = None
    options: Any = None


class Ollama(JsonDialect[OllamaBody]):
    name = "ollama"
    body_type = OllamaBody
    grammar = OLLAMA
    stream_type = b"application/x-ndjson"

    def read(self, request: OllamaBody) -> Prompt:
        options = request.options
        key = b"".join(map(media_key, _images(request)))
        key += messages_key(
            request.prompt if request.messages is None else request.messages,
            system=request.system,
            tools=request.tools,
            options=(
                ("template", request.template),
                ("context", request.context),
                ("raw", request.raw),
            ),
        )
        return Prompt(
            request.model,
            request.namespace(),
            key,
            request.stream is not False,
            True,
            count_or_none(options.get("num_predict")) if isinstance(options, dict) else None,
            len(key),
        )

    def scanner(self, stored: Stored | None = None) -> StreamScanner:
        return LineScanner(self.grammar)

    def usage(self, body: bytes) -> Usage | None:
        return native_usage(body)

    def error(
        self, status: int, message: str, *, type: str, code: str | None, param: str | None
    ) -> bytes:
        return msgspec.json.encode({"error": message})

    def error_event(
        self,
        status: int,
        message: str,
        *,
        type: str,
        code: str | None = None,
        param: str | None = None,
    ) -> bytes:
        return self.error(status, message, type=type, code=code, param=param) + b"\n"


def _images(request: OllamaBody) -> list[Any]:
    """Of the prompt, or of the conversation; first of all in the key, wherever they are shown."""
    holders = request.messages if isinstance(request.messages, list) else []
    shown = [request.images, *(m.get("images") for m in holders if isinstance(m, dict))]
    return [image for images in shown if isinstance(images, list) for image in images]
