"""The way to Redis: commands, what they may take, and when they are sent again."""

from __future__ import annotations

import asyncio
import contextlib
from hashlib import sha1
from time import monotonic
from typing import Any

from gateway.config import Redis
from gateway.shared.address import Address
from gateway.shared.background import Background
from gateway.shared.breaker import Breaker, LinkState, Outcome, logger
from gateway.shared.connection import Lost, Unsent, Word
from gateway.shared.connections import Connections
from gateway.shared.reader import Reader
from gateway.shared.records import Away, Refused
from gateway.shared.replies import away, passing, redirect, unseen
from gateway.shared.servers import LIMIT, Servers
from gateway.types import Clock

_TICK = 0.25
_QUIET = 1.0
"""Seconds without an answer after which the server is asked for one."""
_LOOK = 1.0
"""Seconds between two questions to Sentinels."""
_TRIES = 5
"""Ways that one command goes, from server to server of a cluster or over new connections."""
_MOST_WAITING = 4096
"""Commands under way on one connection."""
_READS = frozenset(
    {
        *(
            "EXISTS",
            "GET",
            "GETRANGE",
            "HGET",
            "HGETALL",
            "HMGET",
            "MGET",
            "PING",
            "PTTL",
            "STRLEN",
        ),
        *("TIME", "TTL", "XINFO", "XLEN", "XRANGE", "XREAD", "XREVRANGE", "ZRANGE", "ZSCORE"),
    }
)
"""Sent again when the connection was lost before the answer; others may have been carried out."""
_LATE = object()


class Link:
    """`Commands` over a few connections that all callers share.

    Args:
        settings: with a URL.
        clock: for `state.since`.

    Raises:
        ConfigError: the URL, a secret or a file cannot be used.
    """

    def __init__(self, settings: Redis, clock: Clock) -> None:
        self._servers = Servers(settings)
        self._tag = f"{{prefixgate:{settings.namespace}}}"
        self._probe = ("SET", self.key("probe"), 1, "PX", 1000)
        self._timeout = settings.timeout
        self._breaker = Breaker(clock)
        self._connections = Connections(self._servers, settings.max_connections, self._breaker)
        self._breaker.closed += [self._connections.close, self._try_soon]
        self._heard = 0.0
        self._hashes: dict[str, str] = {}
        self._forbidden: set[Word] = set()
        self._wake = asyncio.Event()
        self._background = Background("redis")

    @property
    def state(self) -> LinkState:
        """For people and metrics; not to be changed."""
        return self._breaker.state

    @property
    def up(self) -> bool:
        return self._breaker.state.up

    def key(self, *parts: str) -> bytes:
        return ":".join((self._tag, *parts)).encode()

    def reader(self) -> Reader:
        """For commands that wait at the server. It lives as long as the link does."""
        reader = Reader(self._servers, self._breaker)
        self._breaker.closed.append(reader.close)
        return reader

    async def start(self) -> None:
        """Try once, for about a second, and go on trying in the background."""
        self._loop = asyncio.get_running_loop()
        await self._recover()
        self._background.start(self._tend)
        if self._servers.watched:
            self._background.start(self._follow)

    async def stop(self) -> None:
        """Close everything; commands under way raise `Away`."""
        await self._background.stop()
        self._breaker.stop()

    async def call(self, *words: Word, timeout: float | None = None) -> Any:
        """As `Commands`."""
        return await self._call(words, self._timeout if timeout is None else timeout)

    async def run(
        self, script: str, keys: list[bytes], words: list[Word], timeout: float | None = None
    ) -> Any:
        """As `Commands`. Scripts are remembered: they are few."""
        digest = self._hashes.get(script)
        if digest is None:
            digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
            self._hashes[script] = digest
        rest = (len(keys), *keys, *words)
        wait = self._timeout if timeout is None else timeout
        if not self.up:
            raise self._skipped(self.state.cause)
        deadline = monotonic() + wait
        try:
            return await self._call(("EVALSHA", digest, *rest), wait)
        except Refused as error:
            if not unseen(error):
                raise
        return await self._call(("EVAL", script, *rest), deadline - monotonic())

    async def _call(self, words: tuple[Word, ...], wait: float) -> Any:
        state = self._breaker.state
        if not state.up:
            raise self._skipped(state.cause)
        started = monotonic()
        deadline = started + wait
        limit = started + max(wait, LIMIT)
        for _ in range(_TRIES):
            connection = self._connections.pick()
            if connection is None:
                answer = self._connections.coming()
            elif connection.waiting < _MOST_WAITING:
                answer = connection.ask(words, limit)
            else:
                raise self._skipped("too many commands are under way")
            reply = await self._within(answer, deadline)
            if isinstance(reply, Refused) and connection is not None:
                to = redirect(reply, connection.address)
                if to is not None and to[0] == "MOVED":
                    self._connections.move(to[1])
                    continue
                if to is not None:
                    reply = await self._ask_at(to[1], words, deadline, limit)
            if not (isinstance(reply, Lost) and (type(reply) is Unsent or words[0] in _READS)):
                break
            if not state.up:
                break
        now = monotonic()
        if isinstance(reply, Exception):
            raise self._failure(words[0], reply, started, now)
        if reply is _LATE:
            raise self._late(wait, started, now)
        self._heard = now
        self._breaker.done()
        state.commands[Outcome.DONE] += 1
        state.seconds += now - started
        return reply

    async def _within(self, answer: asyncio.Future[Any], deadline: float) -> Any:
        """An answer, or `_LATE`."""
        left = max(deadline - monotonic(), 0.0)
        timer = self._loop.call_later(left, _expire, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    async def _ask_at(
        self, address: Address, words: tuple[Word, ...], deadline: float, limit: float
    ) -> Any:
        try:
            async with asyncio.timeout(deadline - monotonic()):
                answer = await self._connections.ask_at(address, words, limit)
        except TimeoutError:
            return _LATE
        except Away:
            return Lost()
        return await self._within(answer, deadline)

    def _skipped(self, cause: str) -> Away:
        self.state.commands[Outcome.SKIPPED] += 1
        return Away(cause)

    def _late(self, wait: float, started: float, now: float) -> Away:
        self.state.commands[Outcome.TIMEOUT] += 1
        cause = f"{self.state.server} takes longer than {wait:g} s"
        if wait >= self._timeout:
            self._breaker.failed(cause, started, now)
        return Away(cause)

    def _failure(self, command: Word, reply: Exception, started: float, now: float) -> Exception:
        state = self.state
        if isinstance(reply, Refused):
            self._heard = now
            if passing(reply):
                state.commands[Outcome.LOST] += 1
                return Away("the cluster is moving our keys")
            cause = away(reply)
            if cause is None:
                self._breaker.done()
                state.commands[Outcome.REFUSED] += not unseen(reply)
                self._note_forbidden(command, reply)
                return reply
            self._breaker.down(f"{state.server} {cause}")
        elif state.up:
            self._breaker.failed(f"{state.server} ends connections", started, now)
        state.commands[Outcome.LOST] += 1
        return Away(state.cause or "the connection was lost")

    def _note_forbidden(self, command: Word, reply: Refused) -> None:
        if str(reply).startswith("NOPERM") and command not in self._forbidden:
            self._forbidden.add(command)
            logger.warning("redis: %s does not allow %s: %s", self.state.server, command, reply)

    async def _tend(self) -> None:
        while True:
            was_up = self.up
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK if was_up else self._breaker.pause):
                    await self._wake.wait()
            is_woken = self._wake.is_set()
            self._wake.clear()
            if was_up and not self.up and not is_woken:
                continue  # it pauses first
            if not self.up:
                await self._recover()
                continue
            now = monotonic()
            self._connections.check(now)
            if now - self._heard >= _QUIET:
                with contextlib.suppress(Away, Refused):
                    await self.call(*self._probe)

    async def _follow(self) -> None:
        """Leave a primary that has been replaced: it may not know yet, and still take writes."""
        while True:
            await asyncio.sleep(_LOOK)
            elected = await self._servers.elected()
            if elected is not None and self.up and str(elected) != self.state.server:
                self._breaker.down(f"{elected} takes the place of {self.state.server}")

    def _try_soon(self) -> None:
        if self._breaker.retry_at_once:
            self._wake.set()

    async def _recover(self) -> None:
        """Come up if the server takes a small write: a read says too little of it."""
        cause = "the servers of the cluster disagree on where the keys are"
        try:
            for _ in range(_TRIES):
                connection = await self._servers.open(self._connections.lost)
                address = connection.address
                now = monotonic()
                answer = connection.ask(self._probe, now + LIMIT)
                try:
                    reply = await self._within(answer, now + self._timeout)
                except asyncio.CancelledError:
                    connection.abort()
                    raise
                if reply == b"OK" and connection.usable:
                    self._heard = monotonic()
                    self._connections.begin(connection)
                    self._breaker.came_up(str(address))
                    return
                connection.abort()
                to = redirect(reply, address) if isinstance(reply, Refused) else None
                if to is None:
                    cause = f"{address} {self._reason(reply)}"
                    break
                self._servers.moved(to[1])
        except Away as error:
            cause = str(error)
        self._breaker.down(cause)

    def _reason(self, reply: Any) -> str:
        if isinstance(reply, Refused):
            return away(reply) or f"refuses a small write: {reply}"
        if reply is _LATE:
            return f"takes longer than {self._timeout:g} s"
        return "ends connections"


def _expire(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_result(_LATE)
