"""POST /v2/chat and /cohere/v2/chat"""

from __future__ import annotations

import re

from gateway.http.dialects.openai_chat import OpenAIChat
from gateway.http.sse import Grammar

COHERE = Grammar(
    re.compile(rb'"(?:content|tool-plan|tool-call)-delta"'),
    b'"content-delta"',
    re.compile(rb'"message-end"'),
)


class CohereChat(OpenAIChat):
    """Messages, tools and documents are where OpenAI has them; the events have types."""

    name = "cohere-chat"
    grammar = COHERE
