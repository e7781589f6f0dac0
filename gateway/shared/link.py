"""The way to Redis: commands, what they may take, and whether they are worth sending.

    DOWN ──the server took a small write──► UP
      ▲                                      │ not reachable, in a state in which it takes no
      └──────────────────────────────────────┘ commands, or several in a row came to nothing

While down, commands raise `Away` at once, and a task tries again in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import sha1
from typing import Any

from gateway.config import Redis
from gateway.shared.address import Address
from gateway.shared.connection import Connection, Lost, Unsent, Word
from gateway.shared.records import Away, Refused
from gateway.shared.replies import away, redirect
from gateway.shared.servers import LIMIT, Servers
from gateway.types import Clock

logger = logging.getLogger("prefixgate.redis")

_FAILURES = 3
"""Commands in a row that come to nothing before no more are sent."""
_RETRY = 0.5
"""Seconds between attempts while down."""
_QUIET = 1.0
"""Seconds without an answer after which the server is asked for one."""
_TICK = 0.25
_TRIES = 5
_LATE = object()
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
"""May be sent again when a connection was lost before the answer."""


class Outcome(StrEnum):
    """What became of a command."""

    DONE = "done"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    LOST = "lost"
    """The connection ended before the answer, or the server was in no state to give one."""
    SKIPPED = "skipped"
    """Not sent: the link was down."""


@dataclass(slots=True)
class LinkState:
    """Attributes:
    up: whether commands are sent.
    cause: why they are not, in words; "" while they are.
    since: when it came to be so, seconds on the clock.
    server: which one takes the commands, HOST:PORT; "" before the first.
    commands: how many had which outcome.
    seconds: that answers took, summed over those that came.
    reconnects: connections made in place of lost ones.
    """

    up: bool
    cause: str
    since: float
    server: str = ""
    commands: dict[Outcome, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    seconds: float = 0.0
    reconnects: int = 0


class Link:
    """`Commands` over a few connections that all callers share.

    Args:
        settings: with a URL.
        clock: for `state.since`.

    Raises:
        ConfigError: the URL, a secret or a file cannot be used.

    Attributes:
        state: for people and metrics; not to be changed.
        servers: where connections lead.
    """

    def __init__(self, settings: Redis, clock: Clock) -> None:
        self.servers = Servers(settings)
        self._tag = f"{{prefixgate:{settings.namespace}}}"
        self._timeout = settings.timeout
        self._most = settings.max_connections
        self._clock = clock
        self._connections: list[Connection] = []
        self._migrating: Connection | None = None
        self._migrating_lock = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[Any]] = []
        self._failures = 0
        self._heard = 0.0
        self._hashes: dict[str, str] = {}
        self._said: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.state = LinkState(False, "not asked yet", clock())

    @property
    def up(self) -> bool:
        return self.state.up

    def key(self, *parts: str) -> bytes:
        return ":".join((self._tag, *parts)).encode()

    async def start(self) -> None:
        """Try once, a second or so at most, and go on in the background."""
        self._loop = asyncio.get_running_loop()
        await self._recover()
        if not self.up:
            self._say_down()
        self._task = asyncio.create_task(self._tend())

    async def stop(self) -> None:
        """Close everything; commands under way raise `Away`."""
        tasks = [task for task in (self._task, self._opening) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._close("stopped")

    async def call(self, *words: Word, timeout: float | None = None) -> Any:
        """As `Commands`."""
        return await self._call(words, self._timeout if timeout is None else timeout)

    async def run(
        self, script: str, keys: list[bytes], words: list[Word], timeout: float | None = None
    ) -> Any:
        """As `Commands`."""
        digest = self._hashes.get(script)
        if digest is None:
            digest = sha1(script.encode(), usedforsecurity=False).hexdigest()
            self._hashes[script] = digest
        wait = self._timeout if timeout is None else timeout
        rest = (len(keys), *keys, *words)
        if not self.up:
            raise self._skipped()
        deadline = self._loop.time() + wait
        try:
            return await self._call(("EVALSHA", digest, *rest), wait)
        except Refused as error:
            if not str(error).startswith("NOSCRIPT"):
                raise
        return await self._call(("EVAL", script, *rest), deadline - self._loop.time())

    def failed(self, cause: str) -> None:
        """A command came to nothing, or a connection."""
        self._failures += 1
        if self._failures >= _FAILURES:
            self.down(cause)

    def down(self, cause: str) -> None:
        """Send nothing more until the server takes a small write again."""
        if self.up:
            self._close(cause)
            self._say_down()
            self._wake.set()

    async def _call(self, words: tuple[Word, ...], wait: float) -> Any:
        state = self.state
        if not state.up:
            raise self._skipped()
        loop = self._loop
        started = loop.time()
        deadline = started + wait
        limit = started + max(wait, LIMIT)
        for _ in range(_TRIES):
            connection = self._pick()
            answer = self._opened() if connection is None else connection.ask(words, limit)
            reply = await self._within(answer, deadline)
            if connection is None and reply is None:
                continue
            if isinstance(reply, Refused) and (to := redirect(reply)) is not None:
                how, address = to
                if how == "MOVED":
                    self._move(address)
                    continue
                reply = await self._ask(address, words, deadline, limit)
            if isinstance(reply, Lost) and (isinstance(reply, Unsent) or words[0] in _READS):
                continue
            break
        if isinstance(reply, Lost):
            state.commands[Outcome.LOST] += 1
            cause = f"{state.server} ends connections"
            self.failed(cause)
            raise Away(state.cause or cause)
        if reply is _LATE:
            state.commands[Outcome.TIMEOUT] += 1
            cause = f"{state.server} takes longer than {wait:g} s"
            if wait >= self._timeout:
                self.failed(cause)
            raise Away(cause)
        self._heard = loop.time()
        if isinstance(reply, Refused):
            raise self._refused(words[0], reply)
        state.commands[Outcome.DONE] += 1
        state.seconds += self._heard - started
        self._failures = 0
        return reply

    async def _within(self, answer: asyncio.Future[Any], deadline: float) -> Any:
        """An answer, or `_LATE`."""
        timer = self._loop.call_at(deadline, _expire, answer)
        try:
            return await answer
        finally:
            timer.cancel()

    def _skipped(self) -> Away:
        self.state.commands[Outcome.SKIPPED] += 1
        return Away(self.state.cause)

    def _refused(self, command: Word, reply: Refused) -> Exception:
        state = self.state
        if (words := away(reply)) is not None:
            state.commands[Outcome.LOST] += 1
            self.down(f"{state.server} {words}")
            return Away(state.cause)
        if str(reply).startswith("TRYAGAIN"):
            state.commands[Outcome.LOST] += 1
            return Away(f"{state.server} is moving keys")
        state.commands[Outcome.REFUSED] += 1
        self._failures = 0
        if str(reply).startswith("NOPERM") and str(command) not in self._said:
            self._said.add(str(command))
            logger.warning("redis: %s refuses %s: %s", state.server, command, reply)
        return reply

    def _pick(self) -> Connection | None:
        """The least busy connection; None when there is none just now."""
        best: Connection | None = None
        for connection in self._connections:
            if connection.usable and (best is None or connection.waiting < best.waiting):
                best = connection
        if best is None or (best.waiting and len(self._connections) < self._most):
            self._open_another()
        return best

    def _opened(self) -> asyncio.Future[Any]:
        """Becomes None when there is a connection, `Unsent` when it cannot be made."""
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._waiters.append(waiter)
        return waiter

    def _open_another(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def _open(self) -> None:
        try:
            connection = await self.servers.open(self._lost)
            self._connections.append(connection)
            self._answer_waiters(None)
        except Away as error:
            if not self._connections:
                self.down(str(error))
        finally:
            self._opening = None

    def _answer_waiters(self, result: Lost | None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(result)

    def _lost(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self.state.reconnects += 1
            if not self._connections:
                self._open_another()

    def _move(self, address: Address) -> None:
        self.servers.moved(address)
        leaving = [each for each in self._connections if each.address != address]
        for connection in leaving:
            self._connections.remove(connection)
            connection.retire()

    async def _ask(
        self, address: Address, words: tuple[Word, ...], deadline: float, limit: float
    ) -> Any:
        """At the server that a slot moves to, while it does."""
        try:
            async with asyncio.timeout_at(deadline), self._migrating_lock:
                connection = self._migrating
                if connection is None or not connection.usable or connection.address != address:
                    connection = await self.servers.open_at(address, lambda connection: None)
                    if self._migrating is not None:
                        self._migrating.retire()
                    self._migrating = connection
        except TimeoutError:
            return _LATE
        except Away:
            return Lost()
        connection.ask(("ASKING",), limit)
        return await self._within(connection.ask(words, limit), deadline)

    async def _recover(self) -> None:
        """Come up if the server takes a small write."""
        try:
            connection = await self._writable()
        except Away as error:
            self.state.cause = str(error)
            return
        self._connections = [connection]
        self._failures = 0
        self._heard = self._loop.time()
        state = self.state
        state.up, state.cause, state.since = True, "", self._clock()
        state.server = str(connection.address)
        logger.info("redis: shared through %s", state.server)

    async def _writable(self) -> Connection:
        cause = ""
        for _ in range(_TRIES):
            connection = await self.servers.open(self._lost)
            try:
                now = self._loop.time()
                answer = connection.ask(self._probe(), now + LIMIT)
                reply = await self._within(answer, now + self._timeout)
                if reply == b"OK":
                    return connection
            except BaseException:
                connection.abort()
                raise
            connection.abort()
            if not isinstance(reply, Refused):
                late = reply is _LATE
                does = f"takes longer than {self._timeout:g} s" if late else "ends connections"
                raise Away(f"{connection.address} {does}")
            to = redirect(reply)
            if to is None:
                words = away(reply) or f"refuses a small write ({reply})"
                raise Away(f"{connection.address} {words}")
            cause = f"{connection.address} has moved the keys elsewhere"
            self.servers.moved(to[1])
        raise Away(cause)

    def _probe(self) -> tuple[Word, ...]:
        return ("SET", self.key("probe"), 1, "PX", 1000)

    async def _tend(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK if self.up else _RETRY):
                    await self._wake.wait()
            self._wake.clear()
            if not self.up:
                await self._recover()
                continue
            now = self._loop.time()
            for connection in [*self._connections]:
                connection.check(now)
            if now - self._heard >= _QUIET:
                with contextlib.suppress(Away, Refused):
                    await self.call(*self._probe())

    def _close(self, cause: str) -> None:
        state = self.state
        state.up, state.cause, state.since = False, cause, self._clock()
        connections, self._connections = self._connections, []
        if self._migrating is not None:
            connections.append(self._migrating)
            self._migrating = None
        for connection in connections:
            connection.abort()
        self._answer_waiters(Lost())

    def _say_down(self) -> None:
        logger.warning("redis: nothing is shared for now: %s", self.state.cause)


def _expire(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_result(_LATE)
