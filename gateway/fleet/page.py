"""Reading one page of a backend, bounded in time and size whatever the backend does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from dataclasses import dataclass
from typing import TypeVar

import httpx
import msgspec

from gateway.fleet.access import OPEN, Access
from gateway.fleet.address import Address

MAX_BYTES = 8 * 1024 * 1024
"""A metrics page of a large engine has a few hundred kB."""

INSTANCE = "x-prefixgate-instance"
"""Header by which a gateway's own pages tell which process answers."""

_CONNECT_SHARE = 0.8
"""Of the time for a page."""

T = TypeVar("T")


def page_client(tls: ssl.SSLContext | None = None) -> httpx.AsyncClient:
    """What pages are read with."""
    return httpx.AsyncClient(
        # A kept connection would be closed by the engine just when the next page is asked for.
        limits=httpx.Limits(max_keepalive_connections=0),
        headers={"user-agent": "prefixgate-probe", "accept-encoding": "identity"},
        verify=tls or False,  # without one nothing but plain HTTP is spoken
        timeout=None,  # the reader bounds each page as a whole
        trust_env=False,
    )


class PageClients:
    """One client for each way to speak TLS."""

    def __init__(self) -> None:
        self._clients: dict[ssl.SSLContext | None, httpx.AsyncClient] = {}

    def of(self, access: Access) -> httpx.AsyncClient:
        client = self._clients.get(access.tls)
        if client is None:
            client = self._clients[access.tls] = page_client(access.tls)
        return client

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.aclose()


class NoPage(Exception):
    """A page could not be read. The message says which and why, without the address.

    Attributes:
        refused: nothing listens at the address: the engine's process is gone.
    """

    def __init__(self, cause: str, *, refused: bool = False) -> None:
        super().__init__(cause)
        self.refused = refused


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
    """Args:
    client: one that speaks the TLS of `access`.
    timeout: for each page as a whole, seconds.
    instance: how this gateway's own pages name the process; "" when there is no telling.

    Attributes:
        base_path: what all pages are below.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        address: Address,
        timeout: float,
        access: Access = OPEN,
        instance: str = "",
    ) -> None:
        self._client = client
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
        body = bytearray()
        try:
            async with (
                asyncio.timeout(self._timeout),
                contextlib.aclosing(await self._open(path)) as answer,
            ):
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > MAX_BYTES:
                        raise NoPage(f"GET {path}: more than {MAX_BYTES} bytes")
        except (TimeoutError, httpx.TimeoutException):
            raise NoPage(f"GET {path}: no answer within {self._timeout:g} s") from None
        # AttributeError: anyio's, of a connection that was reset just as it was made.
        except (httpx.HTTPError, httpx.InvalidURL, OSError, AttributeError) as error:
            root = _root(error)
            refused = isinstance(root, ConnectionRefusedError)
            raise NoPage(f"GET {path}: {_said(root)}", refused=refused) from None
        if self._instance and answer.headers.get(INSTANCE) == self._instance:
            raise NoPage("the address leads back to this gateway itself")
        return Page(path, answer.status_code, bytes(body))

    async def _open(self, path: str) -> httpx.Response:
        address, access = self._address, self._access
        url = httpx.URL(address.url + path)
        headers = {"host": address.authority}
        extensions: dict[str, str] = {}
        if access.authorization:
            headers["authorization"] = access.authorization.decode()
        if access.rule is not None:
            [host, *_] = await access.rule.resolve(address.host, address.port)
            url = url.copy_with(host=host)
        if access.tls is not None:
            extensions["sni_hostname"] = access.server_name or address.host
        # Cancelled from outside just as a connection is made, the client loses its socket for good:
        # connecting has a limit of the client's own, which strikes before ours can.
        limits = httpx.Timeout(self._timeout, connect=self._timeout * _CONNECT_SHARE)
        request = self._client.build_request(
            "GET", url, headers=headers, extensions=extensions, timeout=limits
        )
        return await self._client.send(request, stream=True)

    async def find(self, path: str) -> Page | None:
        """The page, None where it cannot be read."""
        try:
            return await self.get(path)
        except NoPage:
            return None


def _root(error: BaseException) -> BaseException:
    """What the HTTP client's exceptions were raised from: it names the real cause."""
    while True:
        if isinstance(error, BaseExceptionGroup):  # a name with several addresses
            error = error.exceptions[0]
        elif (below := error.__cause__ or error.__context__) is not None:
            error = below
        else:
            return error


def _said(error: BaseException) -> str:
    """The cause without the address, which the texts of most errors repeat."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = str(getattr(error, "verify_message", "")).partition(",")[0]
        return f"TLS: certificate verify failed{f': {why}' if why else ''}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or 'failed').lower().replace('_', ' ')}"
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error) or type(error).__name__
