"""The gateway's settings: one tree of structs, read from YAML, checked before anything starts.

Durations are in seconds, sizes in bytes, prompt sizes in tokens. An unknown key, a wrong type or a
value out of bounds raises `ConfigError`, which names the place, the value and what is allowed.
"""

from __future__ import annotations

from gateway.config.auth import (
    Admin,
    AdminRole,
    AdminUser,
    ApiKey,
    Auth,
    KeyLimits,
    KeyOptions,
    NewKey,
    WithoutRedis,
)
from gateway.config.backends import BackendConfig, BackendOptions
from gateway.config.base import ConfigError, Count, Secret, SecretRef, Section, Share
from gateway.config.disagg import KINDS, ConnectorName, Disagg, KvCache, Transfer
from gateway.config.discovery import Discovery, DnsSource, FileSource, KubernetesSource, name_server
from gateway.config.failures import (
    Backpressure,
    BreakerConfig,
    Health,
    ModelTimeouts,
    Retries,
    Timeouts,
)
from gateway.config.reading import changed, convert, load, parse
from gateway.config.redis import Redis
from gateway.config.replication import Replication
from gateway.config.scheduling import (
    ClassLimits,
    Index,
    LengthRange,
    PolicyConfig,
    PrefillLimits,
    PriorityShares,
    Scheduling,
    Target,
    Tenants,
)
from gateway.config.server import ENGINE_CONTROL, Server
from gateway.config.settings import Log, Settings, Stored
from gateway.config.tls import BackendTls, ServerTls

__all__ = [
    "ENGINE_CONTROL",
    "KINDS",
    "Admin",
    "AdminRole",
    "AdminUser",
    "ApiKey",
    "Auth",
    "BackendConfig",
    "BackendOptions",
    "BackendTls",
    "Backpressure",
    "BreakerConfig",
    "ClassLimits",
    "ConfigError",
    "ConnectorName",
    "Count",
    "Disagg",
    "Discovery",
    "DnsSource",
    "FileSource",
    "Health",
    "Index",
    "KeyLimits",
    "KeyOptions",
    "KubernetesSource",
    "KvCache",
    "LengthRange",
    "Log",
    "ModelTimeouts",
    "NewKey",
    "PolicyConfig",
    "PrefillLimits",
    "PriorityShares",
    "Redis",
    "Replication",
    "Retries",
    "Scheduling",
    "Secret",
    "SecretRef",
    "Section",
    "Server",
    "ServerTls",
    "Settings",
    "Share",
    "Stored",
    "Target",
    "Tenants",
    "Timeouts",
    "Transfer",
    "WithoutRedis",
    "changed",
    "convert",
    "load",
    "name_server",
    "parse",
]
