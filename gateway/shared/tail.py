"""Reading the stream: from a snapshot on, and for as long as the replica runs.

A position in the stream is good as long as the stream still has everything after it. It is not
when the stream was trimmed beyond it, or has gone back: flushed, restarted empty, or failed over to
a server that lacks the last entries or whose clock is behind, so that new entries come *before* the
position and would never be read. The former shows in the stream's first entry. The latter shows in
its last entry, or in own batches: Redis has confirmed one before a read began, and the read finds
nothing. Either way the snapshot is loaded, if there is one, and the stream read from where it
belongs; batches that were had before are told by their numbers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

from gateway.shared.delivery import Delivery
from gateway.shared.records import Away, Origin, Refused
from gateway.shared.replicas import Replicas
from gateway.shared.snapshots import Snapshots
from gateway.shared.stats import FeedStats, Warmth
from gateway.shared.stream import START, Look, Position, Stream

logger = logging.getLogger("prefixgate.shared")

COUNT = 256
"""Entries in one read."""
PAUSE = 0.003
"""Seconds between two reads: what comes meanwhile comes in one."""
STEP = 0.002
"""Seconds of work after which others get their turn."""
RETRY = 0.1
_ATTEMPTS = 2
"""Times that a snapshot is tried: the first may be replaced while it is loaded."""


class Tail:
    """Args:
        confirmed: number of the last own batch that Redis has confirmed.
        wait: seconds that a read waits for entries.

    Attributes:
        position: of the last entry taken in.
        ready: set once this replica knows what the others knew when it started, or cannot.
    """

    def __init__(
        self,
        stream: Stream,
        delivery: Delivery,
        replicas: Replicas,
        confirmed: Callable[[], int],
        wait: float,
        stats: FeedStats,
    ) -> None:
        self._stream = stream
        self._delivery = delivery
        self._replicas = replicas
        self._confirmed = confirmed
        self._wait = wait
        self._stats = stats
        self._placed = False
        self._target = START
        self._expected = 0
        self._refusal = ""
        self.position = START
        self.ready = asyncio.Event()

    def mark(self) -> tuple[Position, Mapping[Origin, int]]:
        """What a snapshot that is begun now has in it."""
        return self.position, dict(self._delivery.numbers)

    async def run(self, snapshots: Snapshots) -> None:
        """Read for as long as it is let."""
        while True:
            try:
                await self._place(snapshots)
                if self._refusal:
                    self._refusal = ""
                    logger.info("what other replicas learn is read again")
                await self._follow()
            except (Away, Refused) as failure:
                self._say(failure)
                if self._stats.warmth is not Warmth.WARM:
                    self._stats.warmth = Warmth.COLD
                    self.ready.set()
                await asyncio.sleep(RETRY)

    async def look(self) -> None:
        """See how far behind this replica is, and whether its position is still good."""
        position = self.position
        look = await self._stream.look(position)
        if self._placed and position == self.position and not look.holds(position):
            self._displaced(look)
        self._stats.lag_entries = look.behind
        behind = look.behind and look.last is not None
        since = max(position, look.first or START)
        self._stats.lag_seconds = (look.last.ms - since.ms) / 1000 if behind and look.last else 0.0

    async def _place(self, snapshots: Snapshots) -> None:
        """Find the position to read from."""
        look = await self._stream.look(self.position)
        if self._placed and look.holds(self.position):
            return
        if self._stats.warmth is Warmth.WARM:
            self._stats.reloads += 1
        else:
            self._stats.warmth = Warmth.LOADING
        position = START
        for _ in range(_ATTEMPTS):
            snapshot = await snapshots.peek()
            if snapshot is None:
                break
            numbers = snapshot.origins
            for origin, number in self._delivery.numbers.items():
                # What the snapshot says of it is loaded on top of what is still known here, which
                # the lost records may have made void.
                if number < numbers.get(origin, 0):
                    self._delivery.missed(origin)
            if await snapshots.load(snapshot, self._rest):
                self._delivery.known_from(numbers)
                position = snapshot.at
                break
        look = await self._stream.look(position)
        self.position = position if look.holds(position) else START
        self._target = look.last or START
        # Own batches from before may be lost; that is said once.
        self._expected = self._confirmed()
        self._placed = True

    async def _follow(self) -> None:
        """Read until the position is no longer good."""
        if self.position >= self._target:
            self._arrived()
        while self._placed:
            confirmed = self._confirmed()
            # Not beyond the end of a lease: what a dead replica had under way ends with it.
            wait = min(self._wait, self._replicas.patience)
            entries = await self._stream.read(self.position, COUNT, wait)
            if not self._placed:  # `look` has found so meanwhile, and said it
                self._stream.reconnect()
                return
            if not entries and self._delivery.echoed < confirmed > self._expected:
                self._stream.reconnect()
                self._went_back()
                return
            await self._take(entries)
            if len(entries) < COUNT:
                self._replicas.listened()
            if self.position >= self._target:
                self._arrived()
            await asyncio.sleep(PAUSE)

    async def _take(self, entries: list[tuple[Position, bytes]]) -> None:
        until = time.perf_counter() + STEP
        for position, batch in entries:
            age = max(0.0, (self._target.ms - position.ms) / 1000)
            for _ in self._delivery.batch(batch, age):
                if time.perf_counter() > until:
                    await asyncio.sleep(0)
                    until = time.perf_counter() + STEP
            self.position = position

    def _arrived(self) -> None:
        if self._stats.warmth is not Warmth.WARM:
            self._replicas.listened()
            self._stats.warmth = Warmth.WARM
            self.ready.set()

    def _displaced(self, look: Look) -> None:
        if look.first is not None and look.first > self.position:
            logger.info(
                "the stream lacks what follows on what this replica has read: it loads the snapshot"
            )
            self._placed = False
        else:
            self._went_back()

    def _went_back(self) -> None:
        self._placed = False
        self._stats.rewinds += 1
        logger.warning("what replicas told each other is gone from Redis; they go on")

    def _say(self, failure: Exception) -> None:
        # That Redis is away is said by the link.
        refusal = str(failure).partition(" ")[0] if isinstance(failure, Refused) else ""
        if refusal and refusal != self._refusal:
            self._refusal = refusal
            logger.warning("what other replicas learn cannot be read: %s", failure)

    def _rest(self, worked: float) -> float:
        # While it serves, at most half of the time goes into loading.
        return worked if self.ready.is_set() else 0.0
