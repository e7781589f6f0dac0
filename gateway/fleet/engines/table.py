"""All kinds of engines."""

from __future__ import annotations

from gateway.fleet.engines.engine import Engine
from gateway.fleet.engines.llamacpp import LLAMACPP
from gateway.fleet.engines.ollama import OLLAMA
from gateway.fleet.engines.openai import OPENAI
from gateway.fleet.engines.sglang import SGLANG
from gateway.fleet.engines.tgi import TGI
from gateway.fleet.engines.trtllm import TRTLLM
from gateway.fleet.engines.vllm import VLLM
from gateway.types import EngineKind

ENGINES: dict[EngineKind, Engine] = {
    # In this order: a server that shows several marks is the first of them.
    engine.kind: engine
    for engine in (SGLANG, LLAMACPP, TGI, OLLAMA, VLLM, TRTLLM, OPENAI)
}


def engine_of(kind: EngineKind | None) -> Engine:
    """What is known of a backend of that kind; None when the kind is not known yet."""
    return OPENAI if kind is None else ENGINES[kind]
