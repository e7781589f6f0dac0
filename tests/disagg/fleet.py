"""A gateway in front of fake prefill and decode engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.gateway_process import GatewayProcess
from tests.harness.pd.engine import PdEngine
from tests.harness.pd.pools import Pools
from tests.harness.pd.settings import NEEDY
from tests.harness.routes import CHAT, text

PROMPT = text("prompt", 400)

CONCURRENT = frozenset({"nixl_push", "mooncake", "sglang"})


def entry(pools: Pools, engine: PdEngine) -> dict[str, Any]:
    """What the settings say of an engine."""
    told: dict[str, Any] = {"url": engine.url, "models": ["m"]}
    if engine in pools.unified:
        return told
    told["role"] = engine.role.value
    transfer: dict[str, Any] = {}
    if engine in pools.prefills:
        if pools.protocol in ("mooncake", "sglang"):
            transfer["bootstrap_port"] = engine.companions[0].port
        if pools.protocol in ("mooncake", "nixl_push"):
            transfer["engine_id"] = engine.engine_ids[0]
    if transfer:
        told["transfer"] = transfer
    return told


def gateway_for(
    pools: Pools, directory: Path, *, ready: bool = True, **settings: Any
) -> GatewayProcess:
    disagg: dict[str, Any] = {"connector": pools.protocol}
    if pools.protocol not in NEEDY:
        disagg["min_uncached_tokens"] = 0
    disagg |= settings.pop("disagg", {})
    tree = {
        "backends": [entry(pools, engine) for engine in pools.engines],
        "disagg": disagg,
        "health": {"interval": 0.5},
        "timeouts": {"first_byte": 10.0, "prefill_first_byte": 1.5},
        **settings,
    }
    return GatewayProcess(tree, directory, ready=ready)


def chat(name: str = "", **extra: Any) -> dict[str, Any]:
    """A request that nobody has any of in the cache."""
    return {**CHAT.stream([name + PROMPT]), **extra}
