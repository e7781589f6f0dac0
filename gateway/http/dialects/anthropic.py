"""POST /v1/messages"""

from __future__ import annotations

from typing import Any

from gateway.http.dialects.base import Body, JsonDialect, count_or_none
from gateway.http.dialects.errors import AnthropicErrors
from gateway.http.dialects.key import messages_key
from gateway.http.sse import MESSAGES
from gateway.types import Prompt


class MessagesBody(Body):
    messages: Any = None
    system: Any = None
    tools: Any = None
    chat_template_kwargs: Any = None
    max_tokens: Any = None


class AnthropicMessages(AnthropicErrors, JsonDialect[MessagesBody]):
    name = "anthropic-messages"
    body_type = MessagesBody
    grammar = MESSAGES

    def read(self, request: MessagesBody) -> Prompt:
        key = messages_key(
            request.messages,
            system=request.system,
            tools=request.tools,
            options=(("chat_template_kwargs", request.chat_template_kwargs),),
        )
        return Prompt(
            request.model,
            request.namespace(),
            key,
            request.stream is True,
            True,
            count_or_none(request.max_tokens),
            len(key),
        )
