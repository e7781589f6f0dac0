"""How a replica tells the others what it learns, and hears what they do.

    publish ─► outbox ─► stream ─► tail ─► delivery ─► subscribers
                            ▲        ▲
                            └snapshot┘

All of it runs in the background. Nothing waits for it but a replica that starts, for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from gateway.config import Replication
from gateway.shared.background import Background
from gateway.shared.delivery import Delivery
from gateway.shared.outbox import Outbox
from gateway.shared.records import (
    ORIGIN_BYTES,
    Away,
    Commands,
    Heartbeat,
    Kind,
    Refused,
    Snapshotter,
    Subscriber,
)
from gateway.shared.replicas import Replicas, alive
from gateway.shared.snapshots import Snapshots
from gateway.shared.stats import FeedStats, Warmth
from gateway.shared.stream import Stream, Waiting
from gateway.shared.tail import Tail
from gateway.types import Clock
from gateway.version import VERSION

BEAT = 1.0
"""Seconds between two signs of life, at most."""
BEATS = 3
"""Signs of life in a lease, at least."""
PARTING = 1.0
"""Seconds that a replica which stops may take to send what it still has."""


class Feed:
    """A `Publisher`. Subscribers, the snapshotter and heartbeats are named before `start`.

    Args:
        commands: for everything that does not wait in Redis.
        waiting: for the tail alone.
        clock: monotonic, for leases.

    Attributes:
        origin: names this replica to the others.
        replicas: the others.
    """

    def __init__(
        self,
        commands: Commands,
        waiting: Waiting,
        settings: Replication,
        clock: Clock,
        version: str = VERSION,
    ) -> None:
        self.origin = secrets.token_bytes(ORIGIN_BYTES)
        self._commands = commands
        self._settings = settings
        self._version = version
        self._stats = stats = FeedStats()
        self._stream = Stream(commands, waiting, settings.max_stream)
        self._outbox = Outbox(
            self.origin, self._stream.append, settings.batch_interval, settings.max_outbox, stats
        )
        self.replicas = Replicas(settings.lease, clock, lambda origin: self._delivery.gone(origin))
        self._delivery = Delivery(self.origin, self.replicas.heard, stats)
        self._delivery.subscribe(self.replicas)
        self._beat = min(BEAT, settings.lease / BEATS)
        self._tail = Tail(
            self._stream,
            self._delivery,
            self.replicas,
            lambda: self._outbox.confirmed,
            self._beat / 2,
            stats,
        )
        self._snapshots = Snapshots(
            commands, settings.snapshot_interval, self._stream.trim, self._tail.mark, clock, stats
        )
        self._heartbeats: list[Heartbeat] = []
        self._lost = 0
        self._background = Background("feed")
        self._started = self._stopped = False

    @property
    def stats(self) -> FeedStats:
        """As of now; the same object each time."""
        stats = self._stats
        stats.outbox_records = self._outbox.records
        stats.outbox_bytes = self._outbox.size
        stats.replicas = 1 + len(self.replicas.others)
        return stats

    @property
    def warm(self) -> bool:
        """Whether this replica knows what the others know."""
        return self._stats.warmth is Warmth.WARM

    def subscribe(self, subscriber: Subscriber) -> None:
        self._delivery.subscribe(subscriber)

    def keep(self, snapshotter: Snapshotter, kinds: frozenset[Kind]) -> None:
        """Start from snapshots of this state, which records of these kinds change, and write
        them."""
        self._snapshots.snapshotter = snapshotter
        self._snapshots.kinds = kinds

    def repeat(self, heartbeat: Heartbeat) -> None:
        """Send its state with every sign of life."""
        self._heartbeats.append(heartbeat)

    def publish(self, kind: Kind, record: bytes) -> None:
        """As `Publisher`. What is told before `start` is kept until then."""
        if not self._stopped:
            self._outbox.publish(kind, record)

    async def start(self) -> None:
        """Begin. Waits for nothing."""
        self._started = True
        self._background.start(
            self._outbox.run,
            lambda: self._tail.run(self._snapshots),
            self._pulse,
            self._keep_snapshots,
        )

    async def caught_up(self) -> bool:
        """Wait until this replica is warm, Redis is found to be away, or `warm_timeout` is over.

        Returns:
            whether it is warm.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._tail.ready.wait(), self._settings.warm_timeout)
        self._tail.ready.set()
        return self.warm

    async def stop(self) -> None:
        """Say goodbye, send what is left within `PARTING`, end."""
        if self._started and not self._stopped:
            self._outbox.publish(Kind.ALIVE, alive(self._version, leaves=True))
            self._stopped = True
            if self._commands.up:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._outbox.drain(), PARTING)
        await self._background.stop()

    async def _pulse(self) -> None:
        """Show that this replica is there, and see whether it hears."""
        told = 0
        while True:
            # One that could not be sent yet will do: the next ones would only wait behind it.
            if self._outbox.left >= told and not self._stopped:
                self._outbox.publish(Kind.ALIVE, alive(self._version, leaves=False))
                for heartbeat in self._heartbeats:
                    for kind, record in heartbeat.state():
                        self._outbox.publish(kind, record)
                told = self._outbox.published
            self.replicas.look()
            with contextlib.suppress(Away, Refused):
                await self._tail.look()
            await asyncio.sleep(self._beat)

    async def _keep_snapshots(self) -> None:
        while True:
            await asyncio.sleep(self._beat)
            lost = self._stats.own_gaps + self._stats.rewinds
            if lost > self._lost:
                self._lost = lost
                self._snapshots.owed = True
            if not self.warm:
                continue
            try:
                await self._snapshots.peek()
                if self._snapshots.due():
                    await self._snapshots.write()
            except (Away, Refused):
                self._stats.snapshot_age = None
