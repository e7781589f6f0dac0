"""Reading one page of a backend, bounded in time and size whatever the backend does."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import ssl
import time
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from gateway.fleet.access import OPEN, Access
from gateway.fleet.address import Address
from gateway.fleet.time_limits import NO_TIME_LIMITS
from gateway.fleet.upstream import (
    Connection,
    FailureKind,
    Headers,
    OutOfDescriptors,
    Upstream,
    UpstreamFailure,
)

MAX_BYTES = 8 * 1024 * 1024
"""A metrics page of a large engine has a few hundred kB."""

INSTANCE = "x-prefixgate-instance"
"""Header by which a gateway's own pages tell which process answers."""

T = TypeVar("T")


class NoPage(Exception):
    """A page could not be read. The message says which and why, without the address.

    Attributes:
        refused: nothing listens at the address: the engine's process is gone.
        ours: it could not even be asked for, which says nothing of the engine.
    """

    def __init__(self, cause: str, *, refused: bool = False, ours: bool = False) -> None:
        super().__init__(cause)
        self.refused = refused
        self.ours = ours


@dataclass(slots=True, frozen=True)
class Page:
    path: str
    status: int
    body: bytes

    @property
    def exists(self) -> bool:
        return self.status not in (404, 405, 501)

    def read(self, kind: type[T]) -> T | None:
        """The body as `kind`; None when the page is an error or not of that shape."""
        if self.status != 200:
            return None
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


class PageReader:
    """Reads over connections like those of requests: with the same TLS, key and rule, and nothing
    left behind however a reading ends.

    Args:
        timeout: for each page as a whole, seconds.
        instance: how this gateway's own pages name the process; "" when there is no telling.

    Attributes:
        base_path: what all pages are below.
    """

    def __init__(
        self, address: Address, timeout: float, access: Access = OPEN, instance: str = ""
    ) -> None:
        self._address = address
        self._access = access
        self._timeout = timeout
        self._instance = instance
        self.base_path = address.base_path

    async def get(self, path: str) -> Page:
        """Raises:
        NoPage: no connection, no answer in time, one that is not HTTP or too large, or one of
            this gateway's own.
        """
        answer = _Answer()
        upstream = Upstream(self._address.host, self._address.port, time.monotonic, self._access)
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._timeout):
                connection = await upstream.dial(self._timeout)
                connection.send(self._head(path), b"", answer, NO_TIME_LIMITS)
                await answer.done
        except TimeoutError:
            raise NoPage(f"GET {path}: no answer within {self._timeout:g} s") from None
        except OutOfDescriptors:
            raise NoPage(f"GET {path}: the gateway has no descriptor left", ours=True) from None
        except _TooLarge:
            raise NoPage(f"GET {path}: more than {MAX_BYTES} bytes") from None
        except UpstreamFailure as failure:
            if failure.kind is FailureKind.CONNECT_TIMEOUT:
                raise NoPage(f"GET {path}: no answer within {self._timeout:g} s") from None
            cause = failure.__cause__
            said = _BROKEN[failure.kind] if cause is None else _said(cause)
            raise NoPage(f"GET {path}: {said}", refused=_is_refused(cause)) from None
        finally:
            if connection is not None:
                connection.abort()
        if self._instance and answer.header(INSTANCE) == self._instance.encode():
            raise NoPage("the address leads back to this gateway itself")
        return Page(path, answer.status, bytes(answer.body))

    def _head(self, path: str) -> bytes:
        key = self._access.authorization
        return (
            b"GET %b HTTP/1.1\r\nhost: %b\r\nuser-agent: prefixgate-probe\r\naccept: */*\r\n"
            # A kept connection would be closed by the engine just when the next page is asked for.
            b"accept-encoding: identity\r\nconnection: close\r\n%b\r\n"
        ) % (
            (self.base_path + path).encode(),
            self._address.authority.encode(),
            b"authorization: %b\r\n" % key if key else b"",
        )

    async def find(self, path: str) -> Page | None:
        """The page, None where it cannot be read."""
        try:
            return await self.get(path)
        except NoPage:
            return None


class _TooLarge(Exception):
    pass


class _Answer:
    """Gathers an answer; `done` is set when it is over."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.body = bytearray()
        self._headers: Headers = []

    def header(self, name: str) -> bytes:
        return next((value for each, value in self._headers if each == name.encode()), b"")

    def on_head(self, status: int, headers: Headers, first: bytes) -> None:
        self.status, self._headers = status, headers
        self.on_body(first)

    def on_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > MAX_BYTES:
            self._end(_TooLarge())

    def on_end(self, *, framed: bool) -> None:
        self._end(None)

    def on_failure(self, failure: UpstreamFailure) -> None:
        self._end(failure)

    def _end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


_BROKEN = {
    FailureKind.RESET: "the connection ended without an answer",
    FailureKind.INCOMPLETE: "the answer broke off",
    FailureKind.PROTOCOL: "the answer is not HTTP",
}


def _is_refused(cause: BaseException | None) -> bool:
    """Whether nothing listens at any of the addresses that were tried."""
    if isinstance(cause, ConnectionRefusedError):
        return True
    # Of several addresses the event loop says what became of each, in one text.
    return set(_ERRNO.findall(str(cause))) == {str(errno.ECONNREFUSED)}


_ERRNO = re.compile(r"\[Errno (\d+)\]")


def _said(error: BaseException) -> str:
    """The cause without the address, which the texts of most errors repeat."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = str(getattr(error, "verify_message", "")).partition(",")[0]
        return f"TLS: certificate verify failed{f': {why}' if why else ''}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or 'failed').lower().replace('_', ' ')}"
    if _is_refused(error):
        return "connection refused"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
