"""What can be said of a backend."""

from __future__ import annotations

from gateway.config.base import Count, Secret, Section
from gateway.config.disagg import Transfer, check_backend
from gateway.config.tls import BackendTls
from gateway.types import EngineKind, Role


class BackendOptions(Section, frozen=True):
    """All that can be said of a backend but where it is."""

    kind: EngineKind | None = None
    """Detected when not given."""
    role: Role = Role.UNIFIED
    """A prefill engine gets whole requests only while no other backend serves the model."""
    models: list[str] | None = None
    """Read from the backend's /v1/models when not given."""
    capacity_tokens: Count | None = None
    """Size of the KV cache; read from the engine when not given."""
    priority: bool = False
    """The engine schedules by priority (vLLM: --scheduling-policy priority, SGLang:
    --enable-priority-scheduling): a priority that a client gave in a header is passed on to it."""
    api_key: Secret | None = None
    """Sent as a bearer token in place of whatever clients show."""
    tls: BackendTls | None = None
    """How an https backend is spoken to; `backend_tls` when not given."""
    transfer: Transfer | None = None
    """How a prefill or decode engine hands caches over."""


class BackendConfig(BackendOptions, frozen=True, kw_only=True):
    url: str

    def __post_init__(self) -> None:
        if self.tls is not None and not self.url.strip().lower().startswith("https:"):
            raise ValueError("tls is given, but the url is not https")
        connector = None if self.transfer is None else self.transfer.connector
        if connector is not None and self.role is not Role.UNIFIED:
            check_backend(self, connector)
