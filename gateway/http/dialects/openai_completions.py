"""POST /v1/completions"""

from __future__ import annotations

from typing import Any

from gateway.http.dialects.base import Body, JsonDialect, count_or_none
from gateway.http.dialects.errors import OpenAIErrors
from gateway.http.dialects.key import prompt_key
from gateway.http.sse import COMPLETIONS
from gateway.types import Prompt


class CompletionsBody(Body):
    prompt: Any = None
    max_tokens: Any = None


class OpenAICompletions(OpenAIErrors, JsonDialect[CompletionsBody]):
    name = "openai-completions"
    body_type = CompletionsBody
    has_priority = True
    grammar = COMPLETIONS

    def read(self, request: CompletionsBody) -> Prompt:
        prompt = prompt_key(request.prompt)
        return Prompt(
            request.model,
            request.namespace(is_ids=prompt.is_ids),
            prompt.key,
            request.stream is True,
            True,
            count_or_none(request.max_tokens),
            prompt.size,
            is_ids=prompt.is_ids,
        )
