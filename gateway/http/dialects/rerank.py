"""POST /v1/rerank, /v2/rerank, /rerank, /v1/score, /score: texts judged against one query."""

from __future__ import annotations

from typing import Any

from gateway.http.dialects.base import Body, JsonDialect
from gateway.http.dialects.errors import OpenAIErrors
from gateway.http.dialects.key import content_bytes, text_key
from gateway.types import Prompt


class RerankBody(Body):
    """The same two members under every name that they go by."""

    query: Any = None
    queries: Any = None
    text_1: Any = None
    data_1: Any = None
    documents: Any = None
    items: Any = None
    text_2: Any = None
    data_2: Any = None


class Rerank(OpenAIErrors, JsonDialect[RerankBody]):
    """The key is the first query, then the documents.

    An engine prefills the query once more with each document, and so does `prompt_bytes` count.
    """

    name = "rerank"
    body_type = RerankBody

    def read(self, request: RerankBody) -> Prompt:
        queries = _texts(request.query, request.queries, request.text_1, request.data_1)
        documents = _texts(request.documents, request.items, request.text_2, request.data_2)
        key = size = None
        if queries:
            key = text_key(queries[0], documents)
            asked, judged = sum(map(len, queries)), sum(map(len, documents))
            if len(queries) == 1:
                size = asked * len(documents) + judged
            elif len(documents) == 1:
                size = asked + judged * len(queries)
            else:
                size = asked + judged
            size = max(size, len(key))
        return Prompt(
            request.model,
            request.namespace(),
            key or b"",
            generates=False,
            prompt_bytes=size or 0,
        )


def _texts(*spellings: Any) -> list[bytes]:
    given = next((value for value in spellings if value is not None), None)
    if given is None:
        return []
    return [content_bytes(item) for item in (given if isinstance(given, list) else [given])]
