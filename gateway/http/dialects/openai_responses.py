"""POST /v1/responses"""

from __future__ import annotations

from typing import Any

from gateway.http.dialects.base import Body, JsonDialect, count_or_none
from gateway.http.dialects.errors import ResponsesErrors
from gateway.http.dialects.key import messages_key
from gateway.http.sse import RESPONSES
from gateway.types import Prompt


class ResponsesBody(Body):
    input: Any = None
    instructions: Any = None
    tools: Any = None
    reasoning: Any = None
    chat_template_kwargs: Any = None
    max_output_tokens: Any = None


class OpenAIResponses(ResponsesErrors, JsonDialect[ResponsesBody]):
    name = "openai-responses"
    body_type = ResponsesBody
    has_priority = True
    grammar = RESPONSES

    def read(self, request: ResponsesBody) -> Prompt:
        reasoning = request.reasoning
        key = messages_key(
            request.input,
            system=request.instructions,
            tools=request.tools,
            options=(
                ("chat_template_kwargs", request.chat_template_kwargs),
                (
                    "reasoning_effort",
                    reasoning.get("effort") if isinstance(reasoning, dict) else None,
                ),
            ),
        )
        return Prompt(
            request.model,
            request.namespace(),
            key,
            request.stream is True,
            True,
            count_or_none(request.max_output_tokens),
            len(key),
        )
