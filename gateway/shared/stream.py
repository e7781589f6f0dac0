"""The stream through which replicas hear of each other."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from gateway.shared.records import Commands

PATIENCE = 2.0
"""Seconds for commands that no request waits for."""
KEPT = 86_400_000
"""Milliseconds for which Redis keeps what nobody uses: a fleet that is away for longer starts
cold."""
LOOK_LIMIT = 1000

_LOOK = """
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if #first == 0 then return {} end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local behind = redis.call('XRANGE', KEYS[1], ARGV[1], '+', 'COUNT', ARGV[3])
local count = #behind
if count > 0 and behind[1][1] == ARGV[1] then count = count - 1 end
return {first[1][1], last[1][1], count}
"""


class Position(NamedTuple):
    """Id of an entry: Redis's clock in milliseconds, and a number within one."""

    ms: int
    seq: int

    @classmethod
    def parse(cls, text: bytes | str) -> Position:
        """Raises:
        ValueError: it is none.
        """
        ms, _, seq = (text if isinstance(text, str) else text.decode()).partition("-")
        return cls(int(ms), int(seq))

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"


START = Position(0, 0)
"""Before every entry."""


class Look(NamedTuple):
    """The stream as seen from a position.

    Attributes:
        first, last: its ends; None when it is empty.
        behind: entries after the position, as far as they were counted.
    """

    first: Position | None
    last: Position | None
    behind: int

    def holds(self, position: Position) -> bool:
        """Whether everything after the position is still there, and the position itself was not
        of another stream."""
        if position == START:
            return True
        if self.first is None or self.last is None:
            return False
        return self.first <= position <= self.last


class Waiting(Protocol):
    """A connection of its own for commands that wait in Redis, one at a time."""

    async def block(self, *words: bytes | str | int | float, wait: float) -> Any:
        """As `Commands.call`; the command asks Redis to wait for so many seconds at most."""

    def close(self) -> None:
        """Leave the connection; the next command makes another."""


class Stream:
    """Raises `Away` and `Refused` from everything it does.

    Args:
        max_entries: that it keeps, about.
    """

    def __init__(self, commands: Commands, waiting: Waiting, max_entries: int) -> None:
        self._commands = commands
        self._waiting = waiting
        self._max_entries = max_entries
        self._key = commands.key("feed")

    async def append(self, batch: bytes) -> None:
        words = ("XADD", self._key, "MAXLEN", "~", self._max_entries, "*", "b", batch)
        await self._commands.call(*words, timeout=PATIENCE)

    async def read(self, after: Position, count: int, wait: float) -> list[tuple[Position, bytes]]:
        """At most so many entries; none when so many seconds have passed without any."""
        block = max(1, int(wait * 1000))
        words = ("XREAD", "COUNT", count, "BLOCK", block, "STREAMS", self._key, str(after))
        reply = await self._waiting.block(*words, wait=wait)
        if not reply:
            return []
        return [
            (Position.parse(id), fields[1] if fields and len(fields) > 1 else b"")
            for id, fields in reply[0][1]
        ]

    async def look(self, after: Position) -> Look:
        words: list[bytes | str | int | float] = [str(after), KEPT, LOOK_LIMIT]
        reply = await self._commands.run(_LOOK, [self._key], words, timeout=PATIENCE)
        if not reply:
            return Look(None, None, 0)
        return Look(Position.parse(reply[0]), Position.parse(reply[1]), reply[2])

    async def trim(self, before: Position) -> None:
        """Forget entries before a position, or most of them."""
        words = ("XTRIM", self._key, "MINID", "~", str(before))
        await self._commands.call(*words, timeout=PATIENCE)

    def reconnect(self) -> None:
        """Read over a new connection from now on."""
        self._waiting.close()
