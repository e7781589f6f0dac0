"""A priority passed on to an engine, in the engine's own words."""

from __future__ import annotations

from gateway.fleet.backend import Backend
from gateway.http.context import RequestContext
from gateway.types import EngineKind, Priority

_VALUES = {
    EngineKind.VLLM: {Priority.HIGH: -1, Priority.LOW: 1},
    EngineKind.SGLANG: {Priority.HIGH: 1, Priority.LOW: -1},
}
"""vLLM takes the lower first, SGLang the higher; 0, which is what both assume, is normal. The steps
are small, so that no engine throws out what it runs for what comes."""


def with_priority(context: RequestContext, backend: Backend) -> bytes:
    """The body for a backend: as it came, but for a `priority` where the client gave one to the
    gateway alone, and the engine schedules by it."""
    body, facts = context.body, context.facts
    if (
        not backend.config.priority
        or facts is None
        or facts.priority is None
        or facts.prompt.priority is not None
        or not context.dialect.has_priority
    ):
        return body
    value = _VALUES.get(backend.kind or EngineKind.OPENAI, {}).get(facts.priority)
    if value is None or 0 in body[:4]:  # JSON in UTF-16 goes as it is
        return body
    # Such a body is an object that names a model, so that it has a brace and a member.
    begin = body.index(b"{") + 1
    return b'%b"priority":%d,%b' % (body[:begin], value, body[begin:])
