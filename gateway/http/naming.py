"""A request's body and chain under the name that a backend has for its model."""

from __future__ import annotations

from typing import NamedTuple

from gateway.fleet.aliases import Aliases
from gateway.fleet.backend import Backend
from gateway.http.context import RequestContext
from gateway.http.facts import Facts
from gateway.http.model_name import renamed
from gateway.types import Chain


class Addressed(NamedTuple):
    """Attributes:
    body: as it came, but for the model's name.
    model: that name; "" where it is the client's own.
    chain: of the prompt's blocks under it.
    """

    body: bytes
    model: str
    chain: Chain


def addressed(context: RequestContext, backend: Backend, aliases: Aliases) -> Addressed:
    """Raises:
    Malformed: the model's name at this backend cannot be written into the body.
    """
    request, headers, facts = context.request, context.headers, context.facts
    assert request is not None
    assert headers is not None
    assert facts is not None
    chain = request.chain
    model = facts.prompt.model
    if facts.aliased or (model and model not in backend.models):
        name, chain = _name_at(facts, chain, backend, aliases)
        if name != model or context.real_model:
            content_type = headers.content_type.decode("latin-1")
            return Addressed(renamed(context.body, content_type, name), name, chain)
    return Addressed(context.body, context.real_model, chain)


def _name_at(facts: Facts, chain: Chain, backend: Backend, aliases: Aliases) -> tuple[str, Chain]:
    """What a backend calls a request's model, and the prompt's chain under that name."""
    model, models = facts.prompt.model, backend.models
    read = facts.aliased or {model: chain}
    for name in read:
        if name in models:
            return name, read[name]
    # The aliases have changed while it waited. There is no chain under a name that they did
    # not have when the prompt was read.
    for name in aliases.names(model) or (model,):
        if name in models:
            return name, b""
    return next(iter(read.items()))
