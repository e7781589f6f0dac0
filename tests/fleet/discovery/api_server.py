"""A Kubernetes API server on 127.0.0.1 that knows EndpointSlices, and how to misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]


def endpoint(address: str, uid: str = "", **conditions: bool | None) -> Json:
    """One that is ready, if nothing else is said."""
    found: Json = {"addresses": [address], "conditions": conditions or {"ready": True}}
    if uid:
        found["targetRef"] = {"kind": "Pod", "name": f"pod-{uid}", "uid": uid}
    return found


HTTP_PORT: Json = {"name": "http", "port": 8000, "protocol": "TCP"}


@dataclass
class Asked:
    """A request that came: of the list, or of a watch."""

    watch: bool
    path: str
    query: dict[str, str]
    token: str


class FakeApiServer:
    """A context manager.

    Attributes:
        asked: what came, in order.
        tokens: those that are accepted; None accepts all.
        status: answered to everything, when it is not 200.
        loses: what happens is not told to those that watch, now or later.
        holds: what happens is told to those that watch only at `release`.
        hangs: nothing is answered to lists, to watches, or both.
        page: slices in one page of a list.
        history_from: watches from before this version are told that it is gone.
        gone_as_event: they are told so in the stream, with status 200.
        bookmarks: sent at the begin of each watch.
    """

    def __init__(self, certificate: ssl.SSLContext | None = None) -> None:
        self.asked: list[Asked] = []
        self.tokens: set[str] | None = None
        self.status = 200
        self.loses = False
        self.holds = False
        self.hangs: set[str] = set()
        self.page = 100
        self.history_from = 0
        self.gone_as_event = False
        self.bookmarks = False
        self.version = 100
        self._certificate = certificate
        self._slices: dict[str, Json] = {}
        self._history: list[tuple[int, Json]] = []
        self._held: list[Json] = []
        self._watches: dict[asyncio.StreamWriter, asyncio.Queue[Json]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self._port}"

    @property
    def lists(self) -> int:
        return sum(not asked.watch for asked in self.asked)

    @property
    def watches(self) -> int:
        """How many watch now."""
        return len(self._watches)

    async def __aenter__(self) -> FakeApiServer:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=self._certificate
        )
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # what happens in the cluster

    def put(
        self,
        name: str,
        *endpoints: Json | str,
        labels: dict[str, str] | None = None,
        ports: list[Json] | None = None,
        family: str = "IPv4",
    ) -> None:
        found = [endpoint(each) if isinstance(each, str) else each for each in endpoints]
        kind = "MODIFIED" if name in self._slices else "ADDED"
        self._slices[name] = {
            "metadata": {"name": name, "labels": {"of": "vllm"} | (labels or {})},
            "addressType": family,
            "endpoints": found or None,
            "ports": [HTTP_PORT] if ports is None else ports,
        }
        self._happens(kind, self._slices[name])

    def delete(self, name: str) -> None:
        self._happens("DELETED", self._slices.pop(name))

    def _happens(self, kind: str, slice: Json) -> None:
        self.version += 1
        slice["metadata"]["resourceVersion"] = str(self.version)
        event = {"type": kind, "object": json.loads(json.dumps(slice))}
        if self.loses:
            return
        self._history.append((self.version, event))
        if self.holds:
            self._held.append(event)
        else:
            self._tell(event)

    def release(self) -> None:
        """Tell what was held, the last first."""
        self.holds = False
        for event in reversed(self._held):
            self._tell(event)
        self._held.clear()

    def _tell(self, event: Json) -> None:
        for queue in self._watches.values():
            queue.put_nowait(event)

    def cut(self) -> None:
        """Break all watches off, in the middle of an event."""
        for writer in self._watches:
            writer.write(b'50\r\n{"type": "MODI')
            writer.close()
        self._watches.clear()

    # how it is told

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        ends = (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError)
        with contextlib.suppress(*ends):
            while True:
                await self._answer((await reader.readuntil(b"\r\n\r\n")).decode(), writer)
        writer.close()

    async def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        target = head.split(" ")[1]
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if line)
        token = fields.get("authorization", "").removeprefix("bearer ")
        watch = query.get("watch") == "true"
        self.asked.append(Asked(watch, urlsplit(target).path, query, token))
        if ("watch" if watch else "list") in self.hangs:
            await asyncio.Event().wait()
        status = self.status
        if self.tokens is not None and token not in self.tokens:
            status = 401
        gone = watch and int(query["resourceVersion"]) < self.history_from
        if gone and not self.gone_as_event:
            status = 410
        if status != 200:
            return self._send(writer, status, {"kind": "Status", "code": status})
        if not watch:
            return self._send(writer, 200, self._list(query))
        return await self._watch(int(query["resourceVersion"]), gone, writer)

    def _send(self, writer: asyncio.StreamWriter, status: int, body: Json) -> None:
        text = json.dumps(body).encode()
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(text), text))

    def _list(self, query: dict[str, str]) -> Json:
        begin = int(query.get("continue", "0"))
        names = sorted(self._slices)
        rest = begin + self.page
        return {
            "metadata": {
                "resourceVersion": str(self.version),
                **({"continue": str(rest)} if rest < len(names) else {}),
            },
            "items": [self._slices[name] for name in names[begin:rest]] or None,
        }

    async def _watch(self, since: int, gone: bool, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        queue: asyncio.Queue[Json] = asyncio.Queue()
        for version, event in self._history:
            if version > since:
                queue.put_nowait(event)
        if self.bookmarks:
            newest = {"metadata": {"resourceVersion": str(self.version)}}
            queue.put_nowait({"type": "BOOKMARK", "object": newest})
        if gone:
            said = {"kind": "Status", "code": 410, "message": "too old"}
            queue.put_nowait({"type": "ERROR", "object": said})
        self._watches[writer] = queue
        try:
            while True:
                await writer.drain()
                line = json.dumps(await queue.get()).encode() + b"\n"
                # In two pieces: an event may come in any.
                for piece in (line[:7], line[7:]):
                    writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        finally:
            self._watches.pop(writer, None)
