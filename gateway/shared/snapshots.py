"""Snapshots of what all replicas know, from which one that starts goes on.

A pointer names the current snapshot, its position in the stream, and which batches of each replica
are in it. Its chunks are the fields of one hash. Whoever holds the lease writes: the position
first, then the chunks beside those of the current one, then the pointer, in one step with a check
that the lease was never lost. A writer that dies leaves a hash that expires soon.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from gateway.shared.pointer import VERSION, Snapshot, read_pointer
from gateway.shared.records import Away, BadRecord, Commands, Kind, Origin, Refused, Snapshotter
from gateway.shared.stats import FeedStats
from gateway.shared.stream import KEPT, PATIENCE, Position
from gateway.types import Clock

logger = logging.getLogger("prefixgate.shared")

ENOUGH = 100
"""Records that are worth a snapshot once its interval is over."""
RARELY = 10
"""Intervals after which there is one anyway, so that the stream gets shorter."""
_HURRY = 10
"""One that is owed waits for this part of an interval only."""
_WRITER_LEASE = 10_000
"""Milliseconds between two chunks after which a writer is taken to be dead."""
_PARTIAL = 60_000
"""Milliseconds for which chunks stay that no pointer names."""
_SHARE = 0.25
"""Of its time that a replica spends on writing a snapshot while it serves."""

_PEEK = """
local time = redis.call('TIME')
local pointer = redis.call('GET', KEYS[1])
if pointer then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
return {pointer, time[1] * 1000 + math.floor(time[2] / 1000)}
"""
_PUT = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
"""
_SWITCH = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('PEXPIRE', KEYS[3], ARGV[3])
if #KEYS > 3 then redis.call('UNLINK', KEYS[4]) end
redis.call('DEL', KEYS[1])
return 1
"""
_GIVE_BACK = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class _LeaseLost(Exception):
    """Another replica writes."""


class Snapshots:
    """Everything but `due` raises `Away` and `Refused`.

    Args:
        interval: seconds between two of them.
        trim: shortens the stream to what comes after a position.
        mark: where this replica stands: the position up to which it took everything in, and the
            last batch of each origin until there.

    Attributes:
        snapshotter: whose state it is; None while this replica has none to give.
        kinds: of the records that change this state.
        owed: the stream does not hold what a newcomer would need.
    """

    def __init__(
        self,
        commands: Commands,
        interval: float,
        trim: Callable[[Position], Awaitable[None]],
        mark: Callable[[], tuple[Position, Mapping[Origin, int]]],
        clock: Clock,
        stats: FeedStats,
    ) -> None:
        self._commands = commands
        self._interval = interval
        self._trim = trim
        self._mark = mark
        self._clock = clock
        self._stats = stats
        self._pointer_key = commands.key("snapshot")
        self._lease_key = commands.key("snapshot", "lease")
        self._current: Snapshot | None = None
        self._learnt_before = 0
        self._text: bytes | None = None
        self._useless: bytes | None = None
        self._age: float | None = None
        self._wrote_at = -float("inf")
        self._now = 0
        self.snapshotter: Snapshotter | None = None
        self.kinds: frozenset[Kind] = frozenset()
        self.owed = False

    @property
    def learnt(self) -> int:
        """Records so far that changed the state."""
        published, applied = self._stats.published, self._stats.applied
        return sum(published[kind] + applied[kind] for kind in self.kinds)

    async def peek(self) -> Snapshot | None:
        """The current snapshot; None when there is none, or none that is of use here."""
        keys = [self._pointer_key]
        self._text, self._now = await self._commands.run(_PEEK, keys, [KEPT], timeout=PATIENCE)
        snapshot = self._read(self._text)
        if snapshot is not None:
            renew = ("PEXPIRE", self._chunks_key(snapshot.id), KEPT)
            if not await self._commands.call(*renew, timeout=PATIENCE):
                snapshot = None  # its chunks were evicted
        if snapshot is None:
            self._age = None
            if self._current is not None and self._useless is None:
                self._stats.snapshots_lost += 1
                logger.warning("Redis has lost the snapshot of the index: another is written")
        else:
            age = (self._now - snapshot.written) / 1000
            # Redis's clock has gone back: as good a reason as any to write another.
            self._age = age if age >= 0 else float("inf")
        if snapshot is None or self._current is None or snapshot.id != self._current.id:
            self._learnt_before = self.learnt
        self._current = snapshot
        self._stats.snapshot_bytes = 0 if snapshot is None else snapshot.bytes
        self._stats.snapshot_age = self._age
        return snapshot

    def due(self) -> bool:
        """Whether one is to be written, by what the last look said."""
        if self.snapshotter is None or not self.learnt:
            return False
        waited = self._clock() - self._wrote_at
        if self._useless is not None:
            # That of a newer release, on which others may depend, lives on for a while.
            return waited >= RARELY * self._interval
        if self.owed or self._age is None:
            return waited >= self._interval / _HURRY
        enough = self.learnt - self._learnt_before >= ENOUGH
        return self._age >= self._interval * (1 if enough else RARELY)

    async def load(self, snapshot: Snapshot, pause: Callable[[float], float]) -> bool:
        """Take in a snapshot; False when it cannot be read to its end.

        Args:
            pause: seconds to wait after a step that took so many seconds.
        """
        if self.snapshotter is None:
            return False
        started = time.perf_counter()
        key = self._chunks_key(snapshot.id)
        try:
            loader = self.snapshotter.loader()
            for index in range(snapshot.chunks):
                chunk = await self._commands.call("HGET", key, index, timeout=PATIENCE)
                if chunk is None:
                    self._stats.snapshot_failures += 1
                    return False  # replaced, twice since it was looked at, or evicted
                before = time.perf_counter()
                loader.feed(chunk)
                await asyncio.sleep(pause(time.perf_counter() - before))
            loader.finish()
        except (Away, Refused):
            self._stats.snapshot_failures += 1
            raise
        except BadRecord as error:
            self._reject(error)
            return False
        except Exception as error:
            logger.exception("loading the index's snapshot failed")
            self._reject(error)
            return False
        self._stats.snapshots_loaded += 1
        self._stats.load_seconds = time.perf_counter() - started
        return True

    async def write(self) -> bool:
        """Write one if it is still due and nobody else does; whether there is a new one."""
        token = secrets.token_hex(8)
        words = ("SET", self._lease_key, token, "NX", "PX", _WRITER_LEASE)
        if await self._commands.call(*words, timeout=PATIENCE) is None:
            return False
        started = time.perf_counter()
        try:
            before = await self.peek()
            if not self.due():
                return False
            self._wrote_at = self._clock()
            await self._write(token, before)
        except _LeaseLost:
            self._stats.snapshot_failures += 1
            return False
        except Exception:
            self._stats.snapshot_failures += 1
            raise
        finally:
            # It expires by itself; and what ended the writing must not be hidden by this.
            with contextlib.suppress(Away, Refused):
                await self._commands.run(_GIVE_BACK, [self._lease_key], [token], timeout=PATIENCE)
        self._stats.snapshots_written += 1
        self._stats.snapshot_seconds = time.perf_counter() - started
        if before is not None:
            await self._trim(before.at)
        await self.peek()
        return True

    async def _write(self, token: str, before: Snapshot | None) -> None:
        assert self.snapshotter is not None
        position, numbers = self._mark()
        named = {origin.hex(): number for origin, number in numbers.items()}
        owed, self.owed = self.owed, False
        key = self._chunks_key(token)
        chunks = size = 0
        try:
            steps = self.snapshotter.dump()
            while True:
                started = time.perf_counter()
                chunk = next(steps, None)
                if chunk is None:
                    break
                await asyncio.sleep((time.perf_counter() - started) * (1 / _SHARE - 1))
                await self._leased(
                    _PUT, [self._lease_key, key], [token, _WRITER_LEASE, _PARTIAL, chunks, chunk]
                )
                chunks, size = chunks + 1, size + len(chunk)
            last = "" if before is None else before.id
            snapshot = Snapshot(VERSION, token, str(position), named, chunks, size, self._now, last)
            keys = [self._lease_key, self._pointer_key, key]
            if before is not None and before.before:
                keys.append(self._chunks_key(before.before))
            await self._leased(_SWITCH, keys, [token, msgspec.json.encode(snapshot), KEPT])
        except BaseException:
            self.owed = owed or self.owed
            raise

    async def _leased(
        self, script: str, keys: list[bytes], words: list[bytes | str | int | float]
    ) -> None:
        if not await self._commands.run(script, keys, words, timeout=PATIENCE):
            raise _LeaseLost

    def _read(self, text: bytes | None) -> Snapshot | None:
        if text is None or text != self._useless:
            self._useless = None
        if text is None or self._useless is not None:
            return None
        try:
            return read_pointer(text)
        except BadRecord as error:
            self._reject(error)
            return None

    def _reject(self, error: Exception) -> None:
        """Do without the snapshot that was looked at last."""
        self._useless = self._text
        self._wrote_at = self._clock()
        self._stats.snapshot_failures += 1
        logger.warning("the index's snapshot is of no use: %s", error)

    def _chunks_key(self, id: str) -> bytes:
        return self._commands.key("snapshot", id)
