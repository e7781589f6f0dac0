"""Any other server that speaks the OpenAI routes: nothing is known of it but those."""

from __future__ import annotations

from gateway.fleet.engines.engine import Engine
from gateway.types import EngineKind

OPENAI = Engine(EngineKind.OPENAI)
