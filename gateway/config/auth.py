"""Whose API keys and admin tokens are good for what."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from msgspec import Meta

from gateway.config.base import Count, Hash, HostPort, Name, Secret, SecretRef, Section
from gateway.types import Priority


class KeyLimits(Section, frozen=True):
    """Limits of one API key; null is none. Minutes are whole ones, the first of which begins with
    the first request: around the end of one, twice as much can come within a minute."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    """Prompt and output tokens of the work that was done."""
    max_concurrent: Count | None = None
    """Requests under way, from their head to the end of their answer."""


class KeyOptions(Section, frozen=True):
    """What a client's key is good for."""

    tenant: Annotated[str, Meta(pattern=r"^[!-~]([ -~]{0,198}[!-~])?$")] | None = None
    """Whom its requests count for; the key's name when not given."""
    models: tuple[str, ...] | None = None
    """Models it may use, with * for anything; all when not given. With them, every request must
    name one."""
    max_priority: Priority = Priority.NORMAL
    """The highest priority that its requests can have."""
    names_tenants: bool = False
    """Whether `scheduling.tenants.header` is believed of its requests."""
    limits: KeyLimits = KeyLimits()


class NewKey(KeyOptions, frozen=True, kw_only=True):
    """A key to be made."""

    name: Name


class ApiKey(KeyOptions, frozen=True, kw_only=True):
    """A client's key, by its hash or by where it is kept."""

    name: Name
    hash: Hash | None = None
    key: SecretRef | None = None

    def __post_init__(self) -> None:
        if (self.hash is None) is (self.key is None):
            raise ValueError(f"key {self.name!r} has exactly one of hash and key")


class WithoutRedis(StrEnum):
    """What holds of keys' limits while replicas cannot count together."""

    SHARE = "share"
    """Each replica allows its share: the limit divided by the replicas it last knew of, at least
    1."""
    FULL = "full"
    """Each allows the whole limit."""
    REFUSE = "refuse"
    """Requests of keys with limits are answered with 503."""


class Auth(Section, frozen=True):
    """API keys. With `enabled`, nothing but liveness and readiness answers without one."""

    enabled: bool = False
    keys: tuple[ApiKey, ...] = ()
    open_metrics: bool = False
    """Whether /metrics answers without a key."""
    pass_credentials: bool = False
    """Send clients' keys and cookies on to backends that have no `api_key`."""
    without_redis: WithoutRedis = WithoutRedis.SHARE
    """With `redis.url`, limits hold over all replicas: what holds while Redis is away."""

    def __post_init__(self) -> None:
        names = [key.name for key in self.keys]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"keys: the name {min(twice)!r} is given twice")
        if self.keys and not self.enabled:
            raise ValueError("keys are given, but enabled is false: anybody could come in")


class AdminRole(StrEnum):
    """What a token of the admin API allows; each allows what those before it do."""

    READ = "read"
    OPERATE = "operate"
    """Drain, flush, change policy and scheduling."""
    ADMIN = "admin"
    """Add and remove backends, and everything else."""


class AdminUser(Section, frozen=True):
    """A holder of a token, by its hash or by where it is kept."""

    name: Name
    role: AdminRole
    hash: Hash | None = None
    token: SecretRef | None = None

    def __post_init__(self) -> None:
        if (self.hash is None) is (self.token is None):
            raise ValueError(f"user {self.name!r} has exactly one of hash and token")


class Admin(Section, frozen=True):
    token: Secret | None = None
    """Bearer token of the admin API, with the role admin. Without a token, here or in `users`, it
    answers loopback clients only."""
    users: tuple[AdminUser, ...] = ()
    listen: HostPort | None = None
    """HOST:PORT of a listener for the admin API and /metrics alone; then the main one has no admin
    API."""
    allow_backends: tuple[str, ...] = ()
    """Which addresses backends may be added at: HOST:PORT, ADDRESS:PORT, NETWORK (CIDR) or
    NETWORK:PORT; * as the port is any, *.DOMAIN any name below it. When empty, all but link-local,
    multicast and metadata addresses, which are allowed by no entry but their own."""
