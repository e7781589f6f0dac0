"""Which model's caches a request's are: what engines call it, and never an adapter."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet


def model_at(fleet: Fleet, id: str, name: str) -> str:
    """What a backend calls a model; for an adapter, the model that it belongs to. The first of the
    models that the name stands for where the backend is gone.

    Args:
        name: as clients have it.
    """
    backend = fleet.find(id)
    if backend is None:
        return fleet.aliases.main(name)
    models = backend.models
    for each in fleet.aliases.names(name) or (name,):
        if each in models:
            name = each
            break
    else:
        name = models[0] if models else name
    return name if backend.facts is None else backend.facts.adapters.get(name, name)


def adapter_at(backend: Backend, names: Iterable[str]) -> str:
    """The adapter that a backend serves of what an alias stands for; "" where it is no adapter."""
    name = next((each for each in names if each in backend.models), "")
    return name if backend.facts is not None and name in backend.facts.adapters else ""
