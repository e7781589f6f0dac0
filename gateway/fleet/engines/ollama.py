"""Ollama. It says nothing of its load or of its cache."""

from __future__ import annotations

from gateway.fleet.engines.engine import Engine, Mark
from gateway.fleet.engines.pages import has_version
from gateway.types import EngineKind

OLLAMA = Engine(
    EngineKind.OLLAMA,
    mark=Mark("/api/version", has_version),
    health_paths=("/api/version",),
)
