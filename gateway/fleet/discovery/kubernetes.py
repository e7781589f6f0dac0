"""Backends from a Kubernetes API server: EndpointSlices, listed and then watched."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import NoReturn, TypeVar

import httpx
import msgspec

from gateway.config import ConfigError, KubernetesSource
from gateway.fleet.backend import Source
from gateway.fleet.discovery.feed import FeedFailure, Listing
from gateway.fleet.discovery.slices import (
    EndpointSlice,
    Event,
    SliceList,
    SliceSet,
    Status,
    listing,
)

PAGE = 500
"""Slices asked for at a time; each has up to 1000 endpoints."""
MAX_LINE = 16 * 1024 * 1024
PAUSE = 1.0
"""Least time between two watches, seconds; most before a list where history is gone."""
GONE = 410
HINTS = {
    401: "the token is not accepted",
    403: "the service account may not list and watch endpointslices in this namespace",
    404: "no such API: EndpointSlices are served from Kubernetes 1.21 on",
}

T = TypeVar("T")


class Expired(Exception):
    """The API server no longer knows the version to go on from: list anew."""


class KubernetesFeed:
    """Lists, watches from there, and lists again once a period: an event that was lost is made up
    for by then. A watch that is cut goes on from where it was.

    Raises:
        ConfigError: the API server's address is none.
    """

    source = Source.KUBERNETES
    patience = 30.0

    def __init__(
        self, settings: KubernetesSource, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.name = settings.name
        self.settings = settings
        self._environment = environment
        self._credentials = Path(settings.credentials)
        try:
            httpx.URL(settings.api or "")
        except httpx.InvalidURL as error:
            raise ConfigError(
                f"discovery.kubernetes: api: {settings.api!r} is not a URL: {error}",
                field="discovery.kubernetes.api",
            ) from None

    async def lists(self) -> AsyncGenerator[Listing, None]:
        while True:
            # Anew for each list: the certificates rotate, too.
            async with await asyncio.to_thread(self._client) as client:
                try:
                    async with contextlib.aclosing(self._follow(client)) as found:
                        async for each in found:
                            yield each
                except Expired:
                    await asyncio.sleep(PAUSE * random.random())

    def _client(self) -> httpx.AsyncClient:
        api = self.settings.api
        if api is None:
            host = self._environment.get("KUBERNETES_SERVICE_HOST", "")
            port = self._environment.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise FeedFailure(
                    "not in a cluster (KUBERNETES_SERVICE_HOST is not set), and no api is given"
                )
            api = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        verify: ssl.SSLContext | bool = False  # without TLS there is nothing to verify
        if api.startswith("https"):
            authority = self._credentials / "ca.crt"
            try:
                verify = ssl.create_default_context(
                    cafile=str(authority) if authority.exists() else None
                )
            except (OSError, ssl.SSLError) as error:
                raise FeedFailure(f"{authority}: cannot be used: {error}") from None
        return httpx.AsyncClient(
            base_url=api,
            verify=verify,
            timeout=None,  # each wait has its own bound, by what is waited for
            headers={"user-agent": "prefixgate-discovery", "accept": "application/json"},
            trust_env=False,
        )

    async def _follow(self, client: httpx.AsyncClient) -> AsyncGenerator[Listing, None]:
        """One list, and what is heard of it until it is to be read again.

        Raises:
            FeedFailure: the API server cannot be asked, or refuses.
            Expired: it cannot say what happened since the list.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + self.settings.relist
        slices, version = await self._list(client)
        yield listing(slices, self.settings)
        while (began := clock()) < until:
            async with contextlib.aclosing(self._watch(client, version, until)) as events:
                async for event in events:
                    if event.type == "ERROR":
                        _fail(_decoded(event.object, Status))
                    found = _decoded(event.object, EndpointSlice)
                    version = found.metadata.resource_version or version
                    if event.type == "DELETED":
                        slices.drop(found)
                    elif event.type in ("ADDED", "MODIFIED"):
                        slices.put(found)
                    else:  # BOOKMARK: so far, and nothing happened
                        continue
                    yield listing(slices, self.settings)
            # A server that ends each watch at once is not to be asked without a pause.
            await asyncio.sleep(min(until, began + PAUSE) - clock())

    async def _list(self, client: httpx.AsyncClient) -> tuple[SliceSet, str]:
        found: list[EndpointSlice] = []
        query: dict[str, str] = {"limit": str(PAGE)}
        try:
            async with asyncio.timeout(self.settings.timeout):
                while True:
                    async with self._get(client, query) as answer:
                        page = _decoded(await answer.aread(), SliceList)
                    found += page.items or ()
                    if not page.metadata.continue_:
                        return SliceSet(found), page.metadata.resource_version
                    query["continue"] = page.metadata.continue_
        except TimeoutError:
            raise FeedFailure(f"no list within {self.settings.timeout} s") from None
        except httpx.RequestError as error:
            raise FeedFailure(f"the list broke off: {_cause(error)}") from None

    async def _watch(
        self, client: httpx.AsyncClient, version: str, until: float
    ) -> AsyncGenerator[Event, None]:
        """Ends with the connection, and at `until`: a server may have fallen silent for good."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(math.ceil(until - asyncio.get_running_loop().time())),
        }
        async with self._get(client, query) as answer, contextlib.aclosing(_lines(answer)) as lines:
            while True:
                try:
                    async with asyncio.timeout_at(until):
                        line = await anext(lines, None)
                except (TimeoutError, httpx.RequestError):
                    return
                if line is None:
                    return
                yield _decoded(line, Event)

    @contextlib.asynccontextmanager
    async def _get(
        self, client: httpx.AsyncClient, query: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """An answer of which the head is there."""
        token, namespace = await asyncio.to_thread(self._identity)
        request = client.build_request(
            "GET",
            f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices",
            params={"labelSelector": self._selector, **query},
            headers={"authorization": f"Bearer {token}"} if token else {},
        )
        try:
            async with asyncio.timeout(self.settings.timeout):
                answer = await client.send(request, stream=True)
        except TimeoutError:
            raise FeedFailure(f"no answer within {self.settings.timeout} s") from None
        except httpx.HTTPError as error:
            raise FeedFailure(f"the API server cannot be asked: {_cause(error)}") from None
        try:
            if answer.status_code != 200:
                _fail(Status(answer.status_code, HINTS.get(answer.status_code, "")))
            yield answer
        finally:
            await answer.aclose()

    @property
    def _selector(self) -> str:
        settings = self.settings
        return settings.selector or f"kubernetes.io/service-name={settings.service}"

    def _identity(self) -> tuple[str, str]:
        """Token and namespace, as the files have them now: tokens rotate. No token is sent where
        there is no such file."""
        namespace = self.settings.namespace
        try:
            path = self._credentials / "token"
            token = path.read_text().strip() if path.exists() else ""
            if namespace is None:
                path = self._credentials / "namespace"
                namespace = path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "strerror", None) or type(error).__name__
            raise FeedFailure(f"{path}: cannot be read: {cause}") from None
        return token, namespace


def _fail(status: Status) -> NoReturn:
    """Raises:
    Expired, FeedFailure: what the API server says.
    """
    if status.code == GONE:
        raise Expired
    said = f": {status.message[:200]}" if status.message else ""
    raise FeedFailure(f"the API server answers {status.code}{said}")


def _cause(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


def _decoded(text: bytes | msgspec.Raw, into: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=into)
    except msgspec.MsgspecError as error:
        raise FeedFailure(f"the API server's answer cannot be understood: {error}") from None


async def _lines(answer: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Lines end with a line feed and nothing else; an unfinished last one is dropped."""
    rest = bytearray()
    async for chunk in answer.aiter_bytes():
        rest += chunk
        if len(rest) > MAX_LINE:
            raise FeedFailure(f"the API server sent a line of more than {MAX_LINE} bytes")
        *lines, last = rest.split(b"\n")
        rest = last
        for line in lines:
            if line.strip():
                yield bytes(line)
