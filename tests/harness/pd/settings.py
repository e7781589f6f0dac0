"""What a gateway's settings say of fake prefill and decode engines."""

from __future__ import annotations

from typing import Any

from tests.harness.pd.engine import PdEngine
from tests.harness.pd.pools import Pools

Json = dict[str, Any]

NEEDY = frozenset({"sglang"})
"""Protocols whose engines serve nothing that is not handed over, so that no setting has to say so:
it is the policy then that chooses both engines."""


def entry(engine: PdEngine) -> Json:
    """A backend, without what is found out by asking it."""
    told: Json = {"url": engine.url, "models": list(engine.models), "role": engine.role.value}
    if engine.role != "prefill":
        return told
    transfer: Json = {}
    if engine.companions:
        transfer["bootstrap_port"] = engine.companions[0].port
    if engine.connector.name in ("nixl_push", "mooncake"):
        transfer["engine_id"] = f"engine-{engine.port}"
    if transfer and engine.dp_size > 1:
        transfer["dp_size"] = engine.dp_size
    return told | ({"transfer": transfer} if transfer else {})


def settings(pools: Pools, **disagg: Any) -> Json:
    """The config of a gateway that hands over all requests.

    Args:
        disagg: changes to that section.
    """
    least: Json = {} if pools.protocol in NEEDY else {"min_uncached_tokens": 0}
    return {
        "backends": [entry(engine) for engine in pools.engines],
        "disagg": {"connector": pools.protocol, **least, **disagg},
    }
