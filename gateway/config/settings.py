"""The whole tree."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from gateway.config.auth import Admin, Auth
from gateway.config.backends import BackendConfig
from gateway.config.base import Count, ModelName, Seconds, Section
from gateway.config.disagg import Disagg
from gateway.config.discovery import Discovery
from gateway.config.failures import Backpressure, BreakerConfig, Health, Retries, Timeouts
from gateway.config.redis import Redis
from gateway.config.replication import Replication
from gateway.config.scheduling import Index, PolicyConfig, Scheduling
from gateway.config.server import Server
from gateway.config.tls import BackendTls


class Stored(Section, frozen=True):
    """Responses that engines keep, which only the backend that made one can find again."""

    max_ids: Count = 65_536
    """Responses whose backend is remembered; the latest ones."""
    ttl: Seconds = 86_400.0


class Log(Section, frozen=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    access: str | None = None
    """File for one JSON line a request; "-" is standard output."""
    chains: bool = False
    """Whether these lines have the hashes of the prompts' blocks, which a replay needs. They tell
    which prompts begin alike, and let whoever has a text check whether it was sent."""
    decisions: str | None = None
    """File for one JSON line a routing decision, with every candidate's cost."""


class Settings(Section, frozen=True):
    server: Server = Server()
    backends: list[BackendConfig] = []
    discovery: Discovery = Discovery()
    models: dict[ModelName, Annotated[list[ModelName], Meta(min_length=1)]] = {}
    """Aliases: other names for models that backends list, the preferred ones first. A request is
    sent on with the first of these that its backend serves."""
    policy: PolicyConfig = PolicyConfig()
    scheduling: Scheduling = Scheduling()
    index: Index = Index()
    health: Health = Health()
    breaker: BreakerConfig = BreakerConfig()
    backpressure: Backpressure = Backpressure()
    timeouts: Timeouts = Timeouts()
    retries: Retries = Retries()
    backend_tls: BackendTls = BackendTls()
    """How https backends are spoken to that have no `tls` of their own."""
    auth: Auth = Auth()
    stored: Stored = Stored()
    disagg: Disagg = Disagg()
    redis: Redis = Redis()
    replication: Replication = Replication()
    admin: Admin = Admin()
    log: Log = Log()

    def __post_init__(self) -> None:
        self.disagg.check(self.backends, passes_transfers=self.server.pass_transfer_fields)
