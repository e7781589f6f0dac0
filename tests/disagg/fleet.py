"""A gateway in front of fake prefill and decode engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.gateway_process import GatewayProcess
from tests.harness.pd.pools import Pools
from tests.harness.pd.settings import settings
from tests.harness.routes import CHAT, text

PROMPT = text("prompt", 400)


def gateway_for(
    pools: Pools, directory: Path, *, ready: bool = True, **sections: Any
) -> GatewayProcess:
    tree = settings(pools, **sections.pop("disagg", {}))
    tree |= {
        "health": {"interval": 0.5},
        "timeouts": {"first_byte": 10.0, "prefill_first_byte": 1.5},
    }
    return GatewayProcess(tree | sections, directory, ready=ready)


def chat(name: str = "", **extra: Any) -> dict[str, Any]:
    """A request that nobody has any of in the cache."""
    return {**CHAT.stream([name + PROMPT]), **extra}
