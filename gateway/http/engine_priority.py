"""A priority passed on to an engine, in the engine's own words."""

from __future__ import annotations

from gateway.fleet.backend import Backend
from gateway.fleet.engines.table import engine_of
from gateway.http.context import RequestContext


def with_priority(context: RequestContext, body: bytes, backend: Backend) -> bytes:
    """The body for a backend: as it is, but for a `priority` where the client gave one to the
    gateway alone, and the engine schedules by it."""
    facts = context.facts
    if (
        not backend.config.priority
        or facts is None
        or facts.priority is None
        or facts.prompt.priority is not None
        or not context.dialect.has_priority
    ):
        return body
    value = engine_of(backend.kind).priorities.get(facts.priority)
    if value is not None and backend.facts is not None and backend.facts.flipped:
        value = -value
    if value is None or 0 in body[:4]:  # JSON in UTF-16 goes as it is
        return body
    # Such a body is an object that names a model, so that it has a brace and a member.
    begin = body.index(b"{") + 1
    return b'%b"priority":%d,%b' % (body[:begin], value, body[begin:])
