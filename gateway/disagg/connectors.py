"""All protocols, by name."""

from __future__ import annotations

from gateway.config import ConnectorName
from gateway.disagg.connector import Connector
from gateway.disagg.mooncake import MOONCAKE
from gateway.disagg.nixl_pull import NIXL_PULL
from gateway.disagg.nixl_push import NIXL_PUSH
from gateway.disagg.sglang import SGLANG
from gateway.disagg.shared_store import SHARED_STORE
from gateway.disagg.trtllm import TRTLLM

CONNECTORS: dict[ConnectorName, Connector] = {
    connector.name: connector
    for connector in (NIXL_PULL, NIXL_PUSH, MOONCAKE, SGLANG, TRTLLM, SHARED_STORE)
}
