"""The state that replicas share through Redis."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.config.base import Count, Seconds, Secret, Section
from gateway.config.tls import BackendTls

Namespace = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Redis(Section, frozen=True):
    url: Secret | None = None
    """redis://, rediss:// or unix://, with a database, a user and a password if there are any, and
    several servers with commas between them: the nodes of a cluster, or the Sentinels. Without one
    nothing is shared."""
    sentinel_service: Annotated[str, Meta(min_length=1)] | None = None
    """What the Sentinels call the primary. With it the servers of the URL are Sentinels."""
    username: str | None = None
    password: Secret | None = None
    sentinel_username: str | None = None
    sentinel_password: Secret | None = None
    tls: BackendTls = BackendTls()
    """Towards servers (and Sentinels) of a rediss:// URL."""
    namespace: Namespace = "prefixgate"
    """Replicas with the same one are one gateway. All keys begin with it."""
    timeout: Seconds = 0.05
    """How long a request waits at most for an answer that it needs."""
    max_connections: Count = 2
    """Commands share these; one further connection waits for what other replicas say."""

    def __post_init__(self) -> None:
        if self.sentinel_service is None and (self.sentinel_username or self.sentinel_password):
            raise ValueError(
                "sentinel_username and sentinel_password have no use without sentinel_service"
            )
        if self.username is not None and self.password is None:
            raise ValueError("username has no use without password")
        if self.sentinel_username is not None and self.sentinel_password is None:
            raise ValueError("sentinel_username has no use without sentinel_password")
