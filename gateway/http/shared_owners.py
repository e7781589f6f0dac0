"""Which backend keeps which stored response, wherever it was made: kept in Redis for all replicas.

A note goes there as the answer's first bytes go to the client, and is waited for by nobody. Only a
request that names a response which is not known here asks Redis.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from itertools import islice

from gateway.config import Stored
from gateway.http.owners import MAX_ID, LocalOwners, Owner
from gateway.shared.background import Background
from gateway.shared.records import Away, Commands, Refused
from gateway.types import Clock

logger = logging.getLogger("prefixgate.responses")

PENDING = 4096
"""Notes that wait for Redis; of more, the oldest are dropped."""
TOGETHER = 256
"""Notes in one step."""
RETRY = 0.5
"""Seconds between two attempts to bring notes to a Redis that is away."""
LOOKS = (0.0, 0.01, 0.03)
"""Seconds before each look for a response. A client may have its id and name it elsewhere while the
note of it is still on its way."""

NOTE = """\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ttl, most = tonumber(ARGV[1]), tonumber(ARGV[2])
for at = 3, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[at], ARGV[at + 1])
  redis.call('ZADD', KEYS[2], now, ARGV[at])
end
-- A bounded number at a time: when the bound was lowered, the rest goes with the next notes.
local over = math.min(redis.call('ZCARD', KEYS[2]) - most, 1000)
local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ttl, 'LIMIT', 0, 1000)
if #gone < over then
  gone = redis.call('ZRANGE', KEYS[2], 0, over - 1)
end
for _, id in ipairs(gone) do
  redis.call('HDEL', KEYS[1], id)
  redis.call('ZREM', KEYS[2], id)
end
redis.call('PEXPIRE', KEYS[1], ttl)
redis.call('PEXPIRE', KEYS[2], ttl)
return #gone
"""
"""KEYS: a hash of owners by response id, and the ids by when they were noted. ARGV: how long they
are kept in ms, how many at most, then ids and owners in turn."""

FIND = """\
local owner = redis.call('HGET', KEYS[1], ARGV[2])
local noted = redis.call('ZSCORE', KEYS[2], ARGV[2])
local time = redis.call('TIME')
if not owner or not noted or time[1] * 1000 + time[2] / 1000 - noted >= tonumber(ARGV[1]) then
  return false
end
return owner
"""
"""KEYS as above. ARGV: how long they are kept in ms, the id."""


class SharedOwners:
    """Owners of the responses that any replica has seen made: `stored.max_ids` here, and as many
    in Redis.

    Attributes:
        dropped: notes that Redis never heard of.
    """

    def __init__(self, commands: Commands, settings: Stored, clock: Clock) -> None:
        self._commands = commands
        self._local = LocalOwners(settings, clock)
        self._keys = [commands.key("responses"), commands.key("responses", "noted")]
        self._pending: dict[str, Owner] = {}
        self._wake = asyncio.Event()
        self._background = Background("stored responses")
        self._refused = False
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._local)

    @property
    def settings(self) -> Stored:
        """May be assigned anew at any time."""
        return self._local.settings

    @settings.setter
    def settings(self, settings: Stored) -> None:
        self._local.settings = settings

    def start(self) -> None:
        self._background.start(self._send_all)

    async def stop(self) -> None:
        """Bring what waits to Redis, as far as it takes it at once."""
        await self._background.stop()
        await self._send()

    def note(self, id: str, owner: Owner) -> None:
        self._local.note(id, owner)
        pending = self._pending
        pending.pop(id, None)
        pending[id] = owner
        if len(pending) > PENDING:
            del pending[next(iter(pending))]
            self.dropped += 1
        self._wake.set()

    def find(self, id: str) -> Owner | None:
        return self._local.find(id)

    def seek(self, id: str) -> Awaitable[None] | None:
        """Has Redis tell who keeps a response that is not known here."""
        if len(id) > MAX_ID or not self._commands.up or self._local.find(id) is not None:
            return None
        return self._seek(id)

    async def _seek(self, id: str) -> None:
        for pause in LOOKS:
            await asyncio.sleep(pause)
            try:
                found = await self._commands.run(FIND, self._keys, [self._ttl, id])
            except (Away, Refused):
                return
            if found is not None:
                # What is none of ours names no backend there is.
                backend, _, tenant = found.decode(errors="replace").partition("\n")
                self._local.note(id, Owner(backend, tenant))
                return

    @property
    def _ttl(self) -> int:
        return round(self.settings.ttl * 1000)

    async def _send_all(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self._send():
                await asyncio.sleep(RETRY)
                self._wake.set()

    async def _send(self) -> bool:
        """Whether all has come to Redis that waited."""
        pending = self._pending
        while pending:
            notes = list(islice(pending.items(), TOGETHER))
            words: list[bytes | str | int | float] = [self._ttl, self.settings.max_ids]
            for id, (backend, tenant) in notes:
                words += (id, f"{backend}\n{tenant}")
            try:
                await self._commands.run(NOTE, self._keys, words)
            except Away:
                return False
            except Refused as refused:
                if not self._refused:
                    logger.warning("who keeps which response is not shared: %s", refused)
                self._refused = True
                return False
            if self._refused:
                self._refused = False
                logger.info("who keeps which response is shared again")
            for id, owner in notes:
                if pending.get(id) == owner:
                    del pending[id]
        return True
