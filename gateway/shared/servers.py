"""The way to the server that takes writes: directly, through Sentinels, or within a cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from gateway.config import BackendTls, ConfigError, Redis, Secret
from gateway.secrets import reveal
from gateway.shared.address import Address, place_of
from gateway.shared.connection import Connection, Lost
from gateway.shared.records import Away, Refused
from gateway.shared.replies import away
from gateway.tls import backend_context

logger = logging.getLogger("prefixgate.redis")

OLDEST = (6, 2)
LIMIT = 1.0
"""Seconds for a connection to be made and greeted, and for a command that nobody waits for longer:
later answers do not come any more."""

Ended = Callable[[Connection], None]


def _nothing(connection: Connection) -> None:
    pass


class Servers:
    """Args:
        settings: with a URL.

    Raises:
        ConfigError: the URL, a secret or a file cannot be used.

    Attributes:
        watched: whether Sentinels may name another primary at any time.
    """

    def __init__(self, settings: Redis) -> None:
        assert settings.url is not None
        service = settings.sentinel_service
        place = place_of(reveal(settings.url, "redis.url"), sentinels=service is not None)
        if place.password is not None and settings.password is not None:
            raise ConfigError(
                "redis.password: the password is in redis.url too, expected it in one of the two",
                field="redis.password",
            )
        password = _revealed(settings.password, "redis.password") or place.password
        if password is None and place.username is not None:
            raise ConfigError(
                "redis.url: has a user, expected a password there or in redis.password",
                field="redis.url",
            )
        self._login = _login(settings.username or place.username, password)
        self._sentinel_login = _login(
            settings.sentinel_username,
            _revealed(settings.sentinel_password, "redis.sentinel_password"),
        )
        if settings.tls != BackendTls() and not place.tls:
            raise ConfigError(
                "redis.tls: has no use without TLS, expected a redis.url that begins with rediss://",
                field="redis.tls",
            )
        self._tls = backend_context(settings.tls, "redis.tls") if place.tls else None
        self._server_name = settings.tls.server_name
        self._database = place.database
        self._service = service
        self.watched = service is not None
        self._addresses = deque(place.addresses)
        self._moved: Address | None = None
        self._warned = False

    def moved(self, address: Address) -> None:
        """Go there first from now on: a cluster's node has said that our keys are there."""
        self._moved = address

    async def open(self, ended: Ended = _nothing) -> Connection:
        """To the server that takes writes.

        Args:
            ended: called when the connection has ended.

        Raises:
            Away: there is none; the message says why.
        """
        cause = ""
        for address in self._candidates():
            try:
                if self._service is not None:
                    return await self._through(address, self._service, ended)
                connection = await self.open_at(address, ended)
                if connection.primary or len(self._addresses) == 1:
                    return connection
                connection.abort()
                raise Away(f"{address} is a replica")
            except Away as error:
                cause = str(error)
                self._failed(address)
        raise Away(cause)

    async def elected(self) -> Address | None:
        """Who the Sentinels say is the primary; None when there are none, or none answers."""
        if self._service is None:
            return None
        for sentinel in [*self._addresses]:
            try:
                return await self._named(sentinel, self._service)
            except Away:
                self._failed(sentinel)
        return None

    async def open_at(self, address: Address, ended: Ended = _nothing) -> Connection:
        """To one server.

        Raises:
            Away.
        """
        connection = await self._connect(address, self._login, ended)
        try:
            await self._greet(connection)
        except BaseException:
            connection.abort()
            raise
        return connection

    def _candidates(self) -> list[Address]:
        first = [] if self._moved is None else [self._moved]
        return first + [each for each in self._addresses if each != self._moved]

    def _failed(self, address: Address) -> None:
        """Try the others before it the next time."""
        if address == self._moved:
            self._moved = None
        if address in self._addresses:
            self._addresses.remove(address)
            self._addresses.append(address)

    async def _through(self, sentinel: Address, service: str, ended: Ended) -> Connection:
        address = await self._named(sentinel, service)
        connection = await self.open_at(address, ended)
        if not connection.primary:
            connection.abort()
            raise Away(f"{address} is a replica: the failover has not ended")
        return connection

    async def _named(self, sentinel: Address, service: str) -> Address:
        asked = await self._connect(sentinel, self._sentinel_login, _nothing)
        try:
            found = await _answer(asked, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        finally:
            asked.abort()
        if isinstance(found, Refused):
            if str(found).startswith("ERR unknown command"):
                raise Away(f"{sentinel} is no Sentinel: redis.sentinel_service is set")
            words = away(found) or f"says {found}"
            raise Away(f"the Sentinel {sentinel} {words}")
        if not found:
            raise Away(f"the Sentinel {sentinel} knows no service {service!r}")
        return Address(found[0].decode(), int(found[1]))

    async def _connect(
        self, address: Address, login: tuple[str, ...] | None, ended: Ended
    ) -> Connection:
        loop = asyncio.get_running_loop()
        connection = Connection(address)
        try:
            async with asyncio.timeout(LIMIT):
                if address.port is None:
                    await loop.create_unix_connection(lambda: connection, address.host)
                else:
                    await loop.create_connection(
                        lambda: connection,
                        address.host,
                        address.port,
                        ssl=self._tls,
                        server_hostname=self._server_name if self._tls is not None else None,
                    )
        except TimeoutError:
            over = "" if self._tls is None else " over TLS"
            raise Away(f"{address} does not take connections{over}") from None
        except ssl.SSLError as error:
            raise Away(f"{address}: TLS fails: {_reason(error)}") from None
        except OSError as error:
            number = (
                error.errno or 0
            )  # asyncio's own text repeats the address; a resolver's is good
            reason = os.strerror(number) if number > 0 else error.strerror or error
            raise Away(f"{address} cannot be reached: {reason}") from None
        connection.lost = ended
        try:
            if login is not None:
                reply = await _answer(connection, "AUTH", *login)
                if isinstance(reply, Refused):
                    if "without any password" in str(reply):
                        raise Away(f"{address} wants no password, and was given one")
                    words = away(reply) or f"refuses the password ({_code(reply)})"
                    raise Away(f"{address} {words}")
        except BaseException:
            connection.abort()
            raise
        return connection

    async def _greet(self, connection: Connection) -> None:
        address = connection.address
        hello = await _answer(connection, "HELLO", 2)
        if isinstance(hello, Refused):  # older than 6, or not allowed to this user
            if words := away(hello):
                raise Away(f"{address} {words}")
        else:
            facts = dict(zip(hello[::2], hello[1::2], strict=False))
            connection.version = _version(facts.get(b"version"))
            mode = facts.get(b"mode")
            # a cluster's replicas say where the keys are, as all its nodes do
            connection.primary = facts.get(b"role") != b"replica" or mode == b"cluster"
            if mode == b"sentinel":
                raise Away(f"{address} is a Sentinel: redis.sentinel_service is not set")
        if connection.version is None:
            info = await _answer(connection, "INFO", "server")
            if isinstance(info, bytes):
                _, _, text = info.partition(b"redis_version:")
                connection.version = _version(text.partition(b"\r")[0])
        if connection.version is not None and connection.version < OLDEST and not self._warned:
            self._warned = True
            logger.warning(
                "redis: %s has version %s, expected 6.2 or newer: commands will be refused",
                address,
                ".".join(map(str, connection.version)),
            )
        if self._database:
            reply = await _answer(connection, "SELECT", self._database)
            if isinstance(reply, Refused):
                raise Away(f"{address} has no database {self._database} ({_code(reply)})")


async def _answer(connection: Connection, *words: str | int) -> Any:
    """Raises:
    Away: none came.
    """
    now = monotonic()
    try:
        async with asyncio.timeout(LIMIT):
            reply = await connection.ask(words, now + LIMIT)
    except TimeoutError:
        reply = Lost()
        connection.abort()
    if isinstance(reply, Lost):
        raise Away(f"{connection.address} does not answer")
    return reply


def _revealed(secret: Secret | None, option: str) -> str | None:
    return None if secret is None else reveal(secret, option)


def _login(username: str | None, password: str | None) -> tuple[str, ...] | None:
    if password is None:
        return None
    return (password,) if username is None else (username, password)


def _version(text: Any) -> tuple[int, ...] | None:
    parts = text.decode().split(".")[:2] if isinstance(text, bytes) else []
    return tuple(map(int, parts)) if parts and all(part.isdigit() for part in parts) else None


def _code(error: Refused) -> str:
    return str(error).partition(" ")[0]


def _reason(error: ssl.SSLError) -> str:
    message = getattr(error, "verify_message", None)
    return str(message or error.reason or "no agreement")
