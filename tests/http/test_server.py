"""What the data plane relies on of uvicorn, and the two clients' behaviour on a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
import threading
import time
import weakref
from typing import Any

import pytest

from gateway.config import Server
from gateway.http.client import EXTENSION, AsgiClient, Client
from tests.http.serving import serving, talk


def client_of(scope: Any, receive: Any, send: Any) -> Client:
    extensions = scope.get("extensions") or {}
    return extensions.get(EXTENSION) or AsgiClient(receive, send)


async def read(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    return body


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """/length answers with a length, anything else chunked; the body comes back in two parts."""
    client = client_of(scope, receive, send)
    body = await read(receive)
    client.watch()
    known = scope["path"] == "/length"
    status = 204 if scope["path"] == "/none" else 200
    client.start(status, [(b"x-a", b"1")], len(body) if known else None)
    if status != 204:
        client.write(body[:3])
        client.write(body[3:])
    client.end()
    await client.drained()


@pytest.fixture(params=["direct", "h11"], scope="module")
def port(request: pytest.FixtureRequest) -> Any:
    parser = "httptools" if request.param == "direct" else "h11"
    with serving(echo, parser=parser) as port:
        yield port


def post(path: str, body: bytes, version: str = "1.1", extra: str = "") -> bytes:
    head = f"POST {path} HTTP/{version}\r\nhost: x\r\n{extra}content-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def test_chunked_and_kept_alive(port: int) -> None:
    got = talk(port, post("/x", b"hello") * 3, until=b"0\r\n\r\n", count=3)
    assert got.count(b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n") == 3
    assert got.lower().count(b"transfer-encoding: chunked\r\n") == 3
    assert b"content-length" not in got.lower()


def test_length(port: int) -> None:
    got = talk(port, post("/length", b"hello"), until=b"hello")
    assert got.lower().startswith(b"http/1.1 200 ok\r\nx-a: 1\r\ncontent-length: 5\r\n")
    assert b"chunked" not in got.lower()


def test_http_1_0_gets_a_body_until_close(port: int) -> None:
    got = talk(port, post("/x", b"hello", "1.0"))
    assert b"chunked" not in got.lower()
    assert got.endswith(b"\r\n\r\nhello")


def test_connection_close_is_honoured(port: int) -> None:
    got = talk(port, post("/length", b"hello", extra="connection: close\r\n"))
    assert got.endswith(b"hello")
    assert b"connection: close\r\n" in got.lower()


def test_no_body_where_none_is_allowed(port: int) -> None:
    got = talk(port, post("/none", b"") + post("/length", b"end"), until=b"end")
    head = got.split(b"\r\n\r\n")[0].lower()
    assert head.startswith(b"http/1.1 204")
    assert b"chunked" not in head
    assert b"content-length" not in head


def test_expect_continue(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(post("/length", b"hello", extra="expect: 100-continue\r\n")[:-5])
        assert sock.recv(100).startswith(b"HTTP/1.1 100")
        sock.sendall(b"hello")
        got = b""
        while b"hello" not in got:
            got += sock.recv(1000)


class Waiting:
    """Starts an answer or not, then waits until the client has gone."""

    def __init__(self, *, start: bool) -> None:
        self.start = start
        self.noticed = threading.Event()
        self.arrived = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        client = client_of(scope, receive, send)
        await read(receive)
        gone = asyncio.Event()
        client.on_gone = gone.set
        client.watch()
        if self.start:
            client.start(200, [], None)
            client.write(b"first")
        self.arrived.set()
        await asyncio.wait_for(gone.wait(), 20)
        assert client.gone
        self.noticed.set()


@pytest.mark.parametrize("parser", ["httptools", "h11"])
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("size", [2, 200_000])
def test_a_leaving_client_is_noticed(parser: str, start: bool, reset: bool, size: int) -> None:
    app = Waiting(start=start)
    with serving(app, parser=parser) as port:
        sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        sock.sendall(post("/x", b"y" * size))
        assert app.arrived.wait(20)
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        assert app.noticed.wait(20)


@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_a_slow_reader_pauses_the_source(parser: str) -> None:
    class Source:
        def __init__(self) -> None:
            self.paused, self.resumed = asyncio.Event(), asyncio.Event()

        def pause_reading(self) -> None:
            self.paused.set()

        def resume_reading(self) -> None:
            self.resumed.set()

    resumed = threading.Event()
    paused = threading.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        client = client_of(scope, receive, send)
        await read(receive)
        client.watch()
        source = Source()
        client.source = source
        client.start(200, [], None)
        for _ in range(2000):
            client.write(b"z" * 65536)
            await asyncio.sleep(0)
            if source.paused.is_set():
                break
        assert source.paused.is_set()
        paused.set()
        await asyncio.wait_for(source.resumed.wait(), 20)
        resumed.set()
        client.end()
        await client.drained()

    with serving(app, parser=parser) as port:
        sock = socket.create_connection(("127.0.0.1", port), timeout=20)
        sock.sendall(post("/x", b"y"))
        assert paused.wait(20)
        assert not resumed.is_set()
        while not resumed.is_set():
            assert sock.recv(1 << 20)
        sock.close()


def test_an_aborted_answer_cannot_look_complete(port: int) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        client = client_of(scope, receive, send)
        await read(receive)
        client.start(200, [], None)
        client.write(b"half")
        client.abort()
        await client.drained()

    for parser in ("httptools", "h11"):
        with serving(app, parser=parser) as own:
            got = talk(own, post("/x", b"y"))
            assert b"half" in got
            assert not got.endswith(b"0\r\n\r\n")


def test_reset_connections_do_not_pin_requests() -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)
        alive.add(scope["extensions"][EXTENSION]._cycle)

    with serving(app, limits=Server(keep_alive=600)) as port:
        for _ in range(50):
            sock = socket.create_connection(("127.0.0.1", port), timeout=20)
            sock.sendall(post("/length", b"hello"))
            assert sock.recv(1000)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and len(alive) > 2:
            gc.collect()
            time.sleep(0.05)
        assert len(alive) <= 2


def test_pipelined_requests_are_answered_in_order() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        client = client_of(scope, receive, send)
        body = await read(receive)
        client.watch()
        if body == b"slow":
            await asyncio.sleep(0.1)
        client.start(200, [], len(body))
        client.write(body)
        client.end()

    with serving(app) as port:
        data = post("/a", b"slow") + post("/b", b"fast") + post("/c", b"last")
        got = talk(port, data, until=b"last")
        assert got.index(b"slow") < got.index(b"fast") < got.index(b"last")


def test_more_than_promised_is_cut_and_less_breaks_the_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        client = client_of(scope, receive, send)
        await read(receive)
        client.start(200, [], 3)
        client.write(b"hello" if scope["path"] == "/more" else b"he")
        with contextlib.suppress(Exception):
            client.end()

    with serving(app) as port:
        assert talk(port, post("/more", b""), until=b"hel").endswith(b"\r\n\r\nhel")
        assert talk(port, post("/less", b"")).endswith(b"\r\n\r\nhe")


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_a_body_after_an_upgrade_is_never_taken_for_a_request(upgrade: str) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])
        await echo(scope, receive, send)

    with serving(app) as port, socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        hidden = b"POST /hidden HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
        head = f"connection: upgrade\r\nupgrade: {upgrade}\r\ncontent-length: {len(hidden)}"
        sock.sendall(f"POST /shown HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode())
        got = sock.recv(65536)
        with contextlib.suppress(OSError):
            sock.sendall(hidden)
            while more := sock.recv(65536):
                got += more
    assert got.startswith(b"HTTP/1.1 400 ")
    assert got.count(b"HTTP/1.1 ") == 1
    assert seen == []
