"""What was set over the admin API: here at once, and with Redis in all replicas and for good.

A change is noted here first, and is in force whatever becomes of Redis. It counts as unshared
until Redis has it, which is tried at once and then every `POLL` seconds. Others' changes are
announced, and looked for every `POLL` seconds, for announcements may be lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from gateway.config import ConfigError
from gateway.shared.background import Background
from gateway.shared.records import Away, BadRecord, Kind, Origin, Publisher, Refused
from gateway.shared.store import (
    KEPT,
    MAX_ENTRIES,
    MAX_VALUE,
    NOTHING,
    Behind,
    Change,
    Entry,
    Store,
    Stored,
    Version,
)
from gateway.types import Clock

POLL = 1.0
"""Seconds between two looks at the version."""
RETRY = 0.05
"""Seconds between two tries to read the state before the gateway is ready."""

logger = logging.getLogger("prefixgate.state")


class Noted(NamedTuple):
    """A change that Redis does not have.

    Attributes:
        value: JSON; None when the entry was taken back.
        at: when it was made, on the gateway's clock.
        wall: the same in unix milliseconds.
    """

    value: bytes | None
    at: float
    wall: int


class AdminState:
    """Satisfies `Subscriber`. Without a store, all of it is this process's own.

    Args:
        taken: called when other replicas' changes have come.

    Attributes:
        version: of what was last read from Redis.
        unshared: changes that Redis does not have, by name; none are without a store.
        synced: Redis's state has been read, since the start.
    """

    kinds = frozenset({Kind.STATE})

    def __init__(self, taken: Callable[[], None], clock: Clock) -> None:
        self._taken = taken
        self._clock = clock
        self._store: Store | None = None
        self._publisher: Publisher | None = None
        self._entries: dict[str, Entry] = {}
        self.unshared: dict[str, Noted] = {}
        self.version = NOTHING
        self.synced = False
        self._refusal = ""
        self._one_at_a_time = asyncio.Lock()
        self._wake = asyncio.Event()
        self._background = Background("admin state")

    def share(self, store: Store, publisher: Publisher) -> None:
        """Have all replicas share it. To be called before anything is set."""
        self._store, self._publisher = store, publisher

    @property
    def shared(self) -> bool | None:
        """Whether Redis has all that was set here; None without Redis."""
        return None if self._store is None else not self.unshared

    @property
    def entries(self) -> dict[str, Entry]:
        """Those that hold here, by name."""
        noted = {name: Entry(each.wall, each.value) for name, each in self.unshared.items()}
        return {
            name: entry
            for name, entry in sorted((self._entries | noted).items())
            if entry.value is not None
        }

    def check(self, values: Mapping[str, Any]) -> dict[str, bytes]:
        """As JSON what is to be set, by name, as plain data.

        Raises:
            ConfigError: there would be too many entries, or one is too large.
        """
        encoded = {name: msgspec.json.encode(value) for name, value in values.items()}
        for name, value in encoded.items():
            if len(value) > MAX_VALUE:
                raise ConfigError(
                    f"body: {name}: is {len(value)} bytes, expected at most {MAX_VALUE}"
                )
        if len(self.entries.keys() | values.keys()) >= MAX_ENTRIES:
            raise ConfigError(
                f"body: {MAX_ENTRIES - 1} things have been set over the admin API, which is as many"
                " as are kept; GET /admin/v1/overrides lists them"
            )
        return encoded

    def note(self, values: Mapping[str, Any], gone: Collection[str]) -> None:
        """Take in what was changed here.

        Args:
            values: what is set, by name, as plain data.
            gone: names of what is taken back.

        Raises:
            ConfigError: as `check`; nothing has changed then.
        """
        changes: dict[str, bytes | None] = {**dict.fromkeys(gone), **self.check(values)}
        now, wall = self._clock(), round(time.time() * 1000)
        for name, value in changes.items():
            if self._store is not None:
                self.unshared[name] = Noted(value, now, wall)
            elif value is not None:
                self._entries[name] = Entry(wall, value)
            else:
                self._entries.pop(name, None)

    async def push(self) -> None:
        """Have Redis take what is unshared. When it does not, that stays so."""
        if self._store is not None and self.unshared:
            await self._try(self._push)

    # its life

    async def start(self, timeout: float) -> None:
        """Read what is stored, and follow it from now on.

        Args:
            timeout: seconds to wait for Redis at most; when it comes later, its state comes later.
        """
        if self._store is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not self.synced:
                    await self._try(self._refresh)
                    if not self.synced:
                        await asyncio.sleep(RETRY)
        if not self.synced:
            logger.warning(
                "what was set over the admin API cannot be read from Redis yet: the settings hold"
            )
        self._background.start(self._follow)

    async def stop(self) -> None:
        await self._background.stop()
        if self.unshared:
            logger.warning("never shared, and forgotten now: %s", ", ".join(sorted(self.unshared)))

    async def _follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await self._wake.wait()
            self._wake.clear()
            await self._try(self._refresh)

    # what others say

    def apply(self, kind: Kind, record: bytes, origin: Origin) -> None:
        number, space, _ = record.partition(b" ")
        if not (space and number.isdigit()):
            raise BadRecord("no version of the admin state")
        if record != _record(self.version):
            self._wake.set()

    def missed(self, origin: Origin) -> None:
        self._wake.set()

    def gone(self, origin: Origin) -> None:
        pass

    # how it is done

    async def _try(self, step: Callable[[Store], Awaitable[None]]) -> None:
        assert self._store is not None
        try:
            async with self._one_at_a_time:
                await step(self._store)
        except Away:
            return  # the link has said so
        except Refused as refused:
            if str(refused) != self._refusal:
                logger.error("Redis refuses the admin state: %s", refused)
            self._refusal = str(refused)
            return
        except Exception as failure:  # it holds what is none of ours; the next look may find better
            if repr(failure) != self._refusal:
                logger.exception("the admin state cannot be followed")
            self._refusal = repr(failure)
            return
        if self._refusal:
            self._refusal = ""
            logger.info("the admin state is followed again")

    async def _refresh(self, store: Store) -> None:
        if self.unshared:
            await self._push(store)
        if await store.version() != self.version:
            self._take(await self._read(store))
        self.synced = True

    async def _push(self, store: Store) -> None:
        batch = dict(self.unshared)
        if not batch:
            return
        now = self._clock()
        changes = {name: Change(each.value, now - each.at) for name, each in batch.items()}
        while True:
            try:
                _, outrun = await store.change(self.version, changes)
                break
            except Behind:
                self._take(await self._read(store))
        stored = await self._read(store)
        if outrun:
            logger.warning(
                "set here while Redis was away, and by somebody else since, which holds: %s",
                ", ".join(outrun),
            )
        for name, each in batch.items():
            if self.unshared.get(name) is each:
                del self.unshared[name]
        self._take(stored)
        if self._publisher is not None:
            self._publisher.publish(Kind.STATE, _record(stored.version))

    async def _read(self, store: Store) -> Stored:
        """What Redis holds, once it has got back what it lost.

        Of that the version says too little: another replica, which did not know all, may have put
        back what it knew, and others may have changed it since.
        """
        stored = await store.read()
        forgotten = (time.time() - KEPT / 2) * 1000
        lost = {
            name: entry
            for name, entry in self._entries.items()
            if (name not in stored.entries or stored.entries[name].at < entry.at)
            and (entry.value is not None or entry.at > forgotten)
        }
        if not lost and stored.version.number >= self.version.number:
            return stored
        logger.warning("Redis has lost what was set over the admin API: it is put back")
        await store.put_back(self.version, lost)
        return await store.read()

    def _take(self, stored: Stored) -> None:
        self._entries, self.version = stored.entries, stored.version
        try:
            self._taken()
        except Exception:  # it would be the same after a restart, and in every replica
            logger.exception("the admin state of version %d is not in force", self.version.number)


def _record(version: Version) -> bytes:
    return b"%d %b" % (version.number, version.tag.encode())
