"""The admin state in Redis: entries by name, and one version of them all.

It is one hash. A field is an entry's name, its value when the entry was set and what to, as JSON;
the field `@` is the version. An entry is the smallest thing that can be set by itself, so that two
who set different things at once both have their way. Who sets the same thing later has it: times
are Redis's own, so that replicas' clocks do not matter. What is taken back leaves an entry without
a value for a day, so that a replica which was away does not bring it back.

What names nothing that this version knows is kept, for replicas of another version.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from gateway.shared.records import Commands

MAX_ENTRIES = 2048
MAX_VALUE = 16 * 1024
"""Bytes of an entry's JSON."""
MAX_DIGITS = 20
"""Of a version or a time."""
FRESH = 1.0
"""Seconds. A change that is stored within them was made just now: it holds whatever Redis's clock
says, which may go back when another server takes over."""
KEPT = 86_400.0
"""Seconds that an entry without a value is kept."""

VERSION = b"@"

_STAMP = """
local function number_of(version)
    return version and tonumber(string.match(version, '^%d+')) or 0
end
local function next_version(key, number, tag)
    local version = string.format('%.0f %s', number + 1, tag)
    redis.call('HSET', key, '@', version)
    return version
end
"""

_CHANGE = (
    _STAMP
    + """
local version = redis.call('HGET', KEYS[1], '@')
if number_of(version) < tonumber(ARGV[1]) then return false end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
    local at = string.match(fields[i + 1], '^(%d+) $')
    if at and now - at > tonumber(ARGV[4]) then redis.call('HDEL', KEYS[1], fields[i]) end
end
local new = 0
for i = 6, #ARGV, 3 do new = new + 1 - redis.call('HEXISTS', KEYS[1], ARGV[i]) end
if new > 0 and redis.call('HLEN', KEYS[1]) + new > tonumber(ARGV[3]) then
    return redis.error_reply('FULL the admin state has no room for more entries')
end
local outrun = {}
for i = 6, #ARGV, 3 do
    local age = tonumber(ARGV[i + 1])
    local at = now - age
    local before = redis.call('HGET', KEYS[1], ARGV[i])
    local since = before and tonumber(string.match(before, '^%d+')) or 0
    if since > at and age >= tonumber(ARGV[5]) then
        outrun[#outrun + 1] = ARGV[i]
    else
        -- Later than the one before, also within a millisecond: replicas tell by it which is.
        local value = string.format('%.0f ', math.max(at, since + 1)) .. ARGV[i + 2]
        redis.call('HSET', KEYS[1], ARGV[i], value)
    end
end
return {next_version(KEYS[1], number_of(version), ARGV[2]), outrun}
"""
)
"""False where Redis knows of less than the caller, and nothing has changed."""

_PUT_BACK = (
    _STAMP
    + """
local version = redis.call('HGET', KEYS[1], '@')
for i = 3, #ARGV, 2 do
    local before = redis.call('HGET', KEYS[1], ARGV[i])
    local since = before and tonumber(string.match(before, '^%d+')) or -1
    if tonumber(string.match(ARGV[i + 1], '^%d+')) > since then
        redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    end
end
return next_version(KEYS[1], math.max(number_of(version), tonumber(ARGV[1])), ARGV[2])
"""
)


class Version(NamedTuple):
    """Of the whole state. The tag tells apart what has the same number because Redis has lost
    something in between."""

    number: int
    tag: str


NOTHING = Version(0, "")


class Entry(NamedTuple):
    """Attributes:
    at: when it was set, unix milliseconds.
    value: JSON; None when it was taken back.
    """

    at: int
    value: bytes | None


class Change(NamedTuple):
    """Attributes:
    value: JSON; None takes the entry back.
    age: seconds since it was made.
    """

    value: bytes | None
    age: float


class Stored(NamedTuple):
    version: Version
    entries: dict[str, Entry]


class Behind(Exception):
    """Redis knows of less than this replica: it was flushed, or another server has taken over."""


class Store:
    """Every call raises `Away` and `Refused` as `Commands` do."""

    def __init__(self, commands: Commands, timeout: float) -> None:
        """Args:
        timeout: seconds that one command may take.
        """
        self._commands = commands
        self._timeout = timeout
        self._key = commands.key("state")

    async def version(self) -> Version:
        found = await self._commands.call("HGET", self._key, VERSION, timeout=self._timeout)
        return _version(found)

    async def read(self) -> Stored:
        """All entries, with those that were taken back. What cannot be read is left out."""
        flat = await self._commands.call("HGETALL", self._key, timeout=self._timeout)
        found = dict(zip(flat[::2], flat[1::2], strict=True))
        version = _version(found.pop(VERSION, None))
        return Stored(version, dict(_entries(found.items())))

    async def change(
        self, known: Version, changes: Mapping[str, Change]
    ) -> tuple[Version, list[str]]:
        """Set and take back entries, all in one step.

        Args:
            known: the version that the caller knows.

        Returns:
            The new version, and the names of those that somebody else has set since the change
            was made: they stay.

        Raises:
            Behind: nothing has changed; `put_back` first.
        """
        words: list[bytes | str | int | float] = [known.number, _tag(), MAX_ENTRIES]
        words += [round(KEPT * 1000), round(FRESH * 1000)]
        for name, change in changes.items():
            words += [name, max(0, round(change.age * 1000)), change.value or b""]
        found = await self._commands.run(_CHANGE, [self._key], words, timeout=self._timeout)
        if found is None:
            raise Behind
        version, outrun = found
        return _version(version), [name.decode() for name in outrun]

    async def put_back(self, known: Version, entries: Mapping[str, Entry]) -> None:
        """Give Redis back what it has lost. Of what both have, the later holds: a server that was
        failed over to, or restored, may have an earlier value.

        Args:
            known: the version that had these entries; the new one is above it.
        """
        words: list[bytes | str | int | float] = [known.number, _tag()]
        for name, entry in entries.items():
            words += [name, b"%d %b" % (entry.at, entry.value or b"")]
        await self._commands.run(_PUT_BACK, [self._key], words, timeout=self._timeout)


def _tag() -> str:
    return os.urandom(6).hex()


def _version(stored: bytes | None) -> Version:
    number, _, tag = (stored or b"").partition(b" ")
    if not number.isdigit() or len(number) > MAX_DIGITS:
        return NOTHING
    return Version(int(number), tag.decode(errors="replace"))


def _entries(pairs: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, Entry]]:
    for name, stored in pairs:
        at, space, value = stored.partition(b" ")
        if space and at.isdigit() and len(at) <= MAX_DIGITS and len(value) <= MAX_VALUE:
            with contextlib.suppress(UnicodeDecodeError, msgspec.DecodeError, RecursionError):
                if value:
                    msgspec.json.decode(value)
                yield name.decode(), Entry(int(at), value or None)
