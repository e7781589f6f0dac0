"""What is to be told to the other replicas, until Redis has it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from gateway.shared.batch import RECORD_HEAD, pack
from gateway.shared.records import Away, Kind, Origin, Refused
from gateway.shared.stats import FeedStats

logger = logging.getLogger("prefixgate.shared")

MAX_BATCH = 16 * 1024
"""Bytes of records in a batch, unless one record alone is longer: a few milliseconds' work for
those who take it in."""
RECORD_MEMORY = 100
"""Bytes that a waiting record takes beyond its own: so the bound on bytes bounds records too."""
RETRY = 0.1
"""Seconds from a failure to the next attempt."""


class Outbox:
    """Keeps records in order and appends them in batches.

    A batch has its number before it is sent for the first time and is sent until Redis has
    confirmed it, so that one whose outcome is not known may be appended twice: readers tell by the
    number. Where records had to be dropped a number is left out, and readers know of it.

    Args:
        append: adds one batch to the stream.
        interval: seconds between two batches at least.
        max_bytes: of memory for what waits.

    Attributes:
        published: records that were ever put in.
        left: those of them that are no longer here, sent or dropped.
        confirmed: number of the last batch that is in the stream.
    """

    def __init__(
        self,
        origin: Origin,
        append: Callable[[bytes], Awaitable[object]],
        interval: float,
        max_bytes: int,
        stats: FeedStats,
    ) -> None:
        self._origin = origin
        self._append = append
        self._interval = interval
        self._max_bytes = max_bytes
        self._stats = stats
        self._records: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._number = 0
        self._hole = False
        self._batch = b""
        self._batch_records = 0
        self._refusal = ""
        self.published = 0
        self.left = 0
        self.confirmed = 0

    @property
    def records(self) -> int:
        return self.published - self.left

    @property
    def size(self) -> int:
        """Bytes of memory that they take."""
        return self._bytes + len(self._batch)

    def publish(self, kind: Kind, record: bytes) -> None:
        self._records.append((kind, record))
        self.published += 1
        self._stats.published[kind] += 1
        self._bytes += len(record) + RECORD_MEMORY
        if self._bytes > self._max_bytes:
            self._shed()
        self._filled.set()
        self._emptied.clear()

    async def run(self) -> None:
        """Send for as long as it is let."""
        while True:
            await self._filled.wait()
            await self._send()

    async def drain(self) -> None:
        """Wait until all is sent."""
        await self._emptied.wait()

    def _shed(self) -> None:
        # The oldest goes: what was learnt last is what the others ask for next.
        while self._bytes > self._max_bytes and self._records:
            self._bytes -= len(self._records.popleft()[1]) + RECORD_MEMORY
            self.left += 1
            self._stats.dropped += 1
            self._hole = True

    def _pack(self) -> None:
        records: list[tuple[int, bytes]] = []
        size = 0
        while self._records:
            length = len(self._records[0][1])
            if records and size + length + RECORD_HEAD > MAX_BATCH:
                break
            size += length + RECORD_HEAD
            self._bytes -= length + RECORD_MEMORY
            records.append(self._records.popleft())
        self._number += 2 if self._hole else 1
        self._hole = False
        self._batch = pack(self._origin, self._number, records)
        self._batch_records = len(records)

    async def _send(self) -> None:
        if not self._batch:
            if not self._records:
                self._filled.clear()
                self._emptied.set()
                return
            self._pack()
        try:
            await self._append(self._batch)
        except (Away, Refused) as failure:
            self._stats.append_failures += 1
            self._failed(failure)
            await asyncio.sleep(RETRY)
        else:
            self._sent()
            await asyncio.sleep(self._interval)

    def _sent(self) -> None:
        stats = self._stats
        stats.batches_sent += 1
        stats.records_sent += self._batch_records
        stats.bytes_sent += len(self._batch)
        self.left += self._batch_records
        self.confirmed = self._number
        self._batch, self._batch_records = b"", 0
        if self._refusal:
            self._refusal = ""
            logger.info("Redis takes again what this replica learns")

    def _failed(self, failure: Exception) -> None:
        # That Redis is away is said by the link.
        refusal = str(failure).partition(" ")[0] if isinstance(failure, Refused) else ""
        if refusal and refusal != self._refusal:
            logger.warning("what this replica learns is kept back, Redis refuses it: %s", failure)
        self._refusal = refusal or self._refusal
