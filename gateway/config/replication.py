"""How replicas tell each other what they learn."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from gateway.config.base import Count, Hold, Seconds, Section


class Replication(Section, frozen=True):
    batch_interval: Annotated[float, Meta(ge=0, le=10)] = 0.005
    """At least this long between two batches of what was learnt; what is learnt after a pause is
    told at once."""
    lease: Annotated[float, Meta(ge=0.1, le=3600)] = 3.0
    """A replica that is not heard of for so long is gone, and with it what it has under way and its
    parts of the limits."""
    snapshot_interval: Seconds = 60.0
    """At least this long between two snapshots of the index, from which replicas start."""
    warm_timeout: Hold = 10.0
    """How long a replica that starts may take to catch up with the others before it serves."""
    max_outbox: Annotated[int, Meta(ge=65_536)] = 16 * 1024 * 1024
    """Bytes in memory of what is still to be told. Beyond, the oldest is dropped."""
    max_stream: Count = 100_000
    """Batches that Redis keeps for those who fall behind, about."""
