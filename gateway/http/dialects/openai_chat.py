"""POST /v1/chat/completions"""

from __future__ import annotations

from typing import Any

from gateway.http.dialects.base import Body, JsonDialect, count_or_none
from gateway.http.dialects.errors import OpenAIErrors
from gateway.http.dialects.key import messages_key, prompt_key
from gateway.types import Prompt


class ChatBody(Body):
    messages: Any = None
    tools: Any = None
    functions: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    documents: Any = None
    reasoning_effort: Any = None
    input_ids: Any = None
    """SGLang: the conversation as the client rendered and tokenized it."""
    max_tokens: Any = None
    max_completion_tokens: Any = None

    def key(self) -> bytes:
        return messages_key(
            self.messages,
            tools=self.functions if self.tools is None else self.tools,
            options=(
                ("chat_template", self.chat_template),
                ("chat_template_kwargs", self.chat_template_kwargs),
                ("documents", self.documents),
                ("reasoning_effort", self.reasoning_effort),
            ),
        )


class OpenAIChat(OpenAIErrors, JsonDialect[ChatBody]):
    name = "openai-chat"
    body_type = ChatBody
    has_priority = True

    def read(self, request: ChatBody) -> Prompt:
        is_ids = False
        if request.input_ids is None:
            key = request.key()
        else:
            ids = prompt_key(request.input_ids)
            key, is_ids = ids.key, ids.is_ids
        cap = count_or_none(request.max_completion_tokens)
        return Prompt(
            request.model,
            request.namespace(is_ids=is_ids),
            key,
            request.stream is True,
            True,
            count_or_none(request.max_tokens) if cap is None else cap,
            len(key),
            is_ids=is_ids,
        )
