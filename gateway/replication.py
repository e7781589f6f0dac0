"""A gateway as one of several replicas: what it has in common with them, through Redis.

Requests wait for none of it, but those whose API key has limits, for `redis.timeout` at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from gateway.config import Settings
from gateway.http.quota_sharing import QuotaSharing
from gateway.http.shared_owners import SharedOwners
from gateway.http.shared_quotas import SharedQuotas
from gateway.prefix.shared_index import SharedIndex
from gateway.scheduling.allotment import Allotments
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.shared_load import SharedLoad
from gateway.shared.feed import Feed
from gateway.shared.link import Link
from gateway.shared.records import Kind
from gateway.shared.slots import Slots
from gateway.shared.store import Store
from gateway.telemetry.shared_sources import SharingView
from gateway.types import Clock

if TYPE_CHECKING:
    from gateway.app import Gateway

logger = logging.getLogger("prefixgate.replication")

STATE_TIMEOUT = 1.0
"""Seconds that one command about the admin state may take, and that a replica which starts waits
for that state."""
ALLOTTED = 1.0
"""Seconds that a replica which starts waits for its part of the backends' limits. It may have to do
without, where slots are fewer than replicas or backends are found later."""


class Replication:
    """Made before the parts that count over all replicas; `join` has the others take part.

    Args:
        settings: with a `redis.url`.
        workers: replicas that are sure to be there, this one included.

    Raises:
        ConfigError: Redis cannot be asked with these settings.

    Attributes:
        caught_up: this replica knows what the others know and may send something to each backend,
            or has waited for it long enough.
    """

    index: SharedIndex
    load: SharedLoad
    allotments: Allotments

    def __init__(self, settings: Settings, clock: Clock, workers: int = 1) -> None:
        self._workers = workers
        self._clock = clock
        self._lease = settings.replication.lease
        self._warm_timeout = settings.replication.warm_timeout
        self.link = Link(settings.redis, clock)
        self.feed = Feed(self.link, self.link.reader(), settings.replication, clock)
        self.sharing = QuotaSharing(
            self.link,
            self.feed.origin.hex(),
            without_redis=settings.auth.without_redis,
            timeout=settings.redis.timeout,
            lease=self._lease,
            clock=clock,
            replicas=workers,
        )
        self.quotas = SharedQuotas(self.sharing, self._replicas)
        self.owners = SharedOwners(self.link, settings.stored, clock)
        self.caught_up = False
        self._catching_up: asyncio.Task[None] | None = None

    def join(self, gateway: Gateway) -> None:
        """Have a gateway's parts take part. It must have no backends yet."""
        feed = self.feed
        self._overrides = gateway.overrides
        self.index = SharedIndex(
            gateway.index, gateway.generations, feed, gateway.clock, feed.origin
        )
        self.load = SharedLoad(
            feed, gateway.clock, lambda: gateway.pools.policy, gateway.learning.speeds
        )
        self.allotments = Allotments(lambda: gateway.pools.scheduling, self._replicas)
        self._slots = Slots(self.link, feed.origin, self.allotments, self._lease, self._replicas)
        self.allotments.wake = self._slots.wake
        gateway.overrides.share(Store(self.link, STATE_TIMEOUT), feed)
        for part in (self.index, self.load, gateway.overrides.state):
            feed.subscribe(part)
        feed.keep(self.index, self.index.kinds - {Kind.WANTED})
        feed.repeat(self.index)
        feed.repeat(self.load)

    def attach(self, load: BackendLoad) -> None:
        """Share a backend's ledger and limits."""
        self.load.attach(load)
        self.allotments.attach(load)

    def detach(self, load: BackendLoad) -> None:
        self.load.detach(load)
        self.allotments.detach(load)

    def view(self) -> dict[str, object]:
        """For `/ready`."""
        link = self.link.state
        return {
            "redis": "ok" if link.up else "degraded",
            "cause": link.cause or None,
            "seconds": round(self._clock() - link.since, 1),
            "replicas": self.feed.stats.replicas,
            "index": str(self.feed.stats.warmth),
        }

    def reading(self) -> SharingView:
        """For the metrics page."""
        feed = self.feed
        return SharingView(
            self.link.state, feed.stats, feed.warm, self.index, self.sharing, self.allotments
        )

    async def start(self) -> None:
        """Begin. Waits for little, and for nothing where Redis is away."""
        await self.link.start()
        await self._overrides.state.start(STATE_TIMEOUT)
        await self.feed.start()
        self._slots.start()
        self.quotas.start()
        self.owners.start()
        self._catching_up = asyncio.create_task(self._catch_up())

    async def stop(self) -> None:
        if self._catching_up is not None:
            self._catching_up.cancel()
        await self.owners.stop()
        await self.quotas.stop()
        await self._slots.stop()
        await self._overrides.state.stop()
        await self.feed.stop()
        await self.link.stop()

    async def _catch_up(self) -> None:
        if not await self.feed.caught_up() and self.link.up:
            logger.warning(
                "ready without all that the other replicas know: it did not come within"
                " replication.warm_timeout, %g s; it is still being read",
                self._warm_timeout,
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.allotments.usable.wait(), ALLOTTED)
        self.caught_up = True

    def _replicas(self) -> int:
        return max(self._workers, self.feed.stats.replicas)
