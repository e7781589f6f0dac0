"""POST /v1/responses"""

from __future__ import annotations

from typing import Any

from gateway.http.dialects.base import Body, JsonDialect, count_or_none
from gateway.http.dialects.errors import ResponsesErrors
from gateway.http.dialects.key import messages_key
from gateway.http.sse import RESPONSES, StreamScanner
from gateway.http.stored import Stored, StoredScanner
from gateway.types import Prompt


class ResponsesBody(Body):
    input: Any = None
    instructions: Any = None
    tools: Any = None
    reasoning: Any = None
    chat_template_kwargs: Any = None
    max_output_tokens: Any = None
    previous_response_id: Any = None


class OpenAIResponses(ResponsesErrors, JsonDialect[ResponsesBody]):
    name = "openai-responses"
    body_type = ResponsesBody
    has_priority = True
    grammar = RESPONSES
    stores = True

    def scanner(self, stored: Stored | None = None) -> StreamScanner:
        return StreamScanner(self.grammar) if stored is None else StoredScanner(stored)

    def read(self, request: ResponsesBody) -> Prompt:
        reasoning, previous = request.reasoning, request.previous_response_id
        key = messages_key(
            request.input,
            system=request.instructions,
            tools=request.tools,
            options=(
                # What is rendered begins with a conversation that only the engine knows.
                ("previous_response_id", previous),
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
            continues=previous if isinstance(previous, str) else "",
        )
