"""POST /v1/embeddings"""

from __future__ import annotations

from typing import Any

from gateway.http.dialects.base import JsonDialect
from gateway.http.dialects.errors import OpenAIErrors
from gateway.http.dialects.key import PromptKey, prompt_key
from gateway.http.dialects.openai_chat import ChatBody
from gateway.types import Prompt


class EmbeddingsBody(ChatBody):
    """vLLM embeds conversations too."""

    input: Any = None


class OpenAIEmbeddings(OpenAIErrors, JsonDialect[EmbeddingsBody]):
    name = "openai-embeddings"
    body_type = EmbeddingsBody

    def read(self, request: EmbeddingsBody) -> Prompt:
        if request.messages is None:
            prompt = prompt_key(request.input)
        else:
            key = request.key()
            prompt = PromptKey(key, len(key))
        return Prompt(
            request.model,
            request.namespace(is_ids=prompt.is_ids),
            prompt.key,
            generates=False,
            prompt_bytes=prompt.size,
            is_ids=prompt.is_ids,
        )
