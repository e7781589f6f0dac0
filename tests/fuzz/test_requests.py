"""Any bytes that a client may send: answers in step, and requests that can be read in one way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache
from typing import Any

import h11
import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.server import ServerState

from gateway.config import Server
from gateway.http.client import EXTENSION, AsgiClient, Client
from gateway.http.server import GatewayProtocol, StrictProtocol
from tests.fuzz.effort import effort
from tests.fuzz.mutations import mutated, pieces
from tests.fuzz.transport import KeptTransport

LIMITS = Server(max_head=2000, max_headers=20, max_target=500)
PROTOCOLS = {"httptools": GatewayProtocol, "h11": StrictProtocol}


@cache
def requests() -> st.SearchStrategy[bytes]:
    methods = st.sampled_from([b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT"])
    targets = st.sampled_from([b"/", b"/v1/x", b"/a?b=c", b"*", b"http://h/p", b"/%41", b"h:1"])
    headers = st.lists(
        st.sampled_from(
            [b"x-a: 1", b"Accept: */*", b"cookie: a=b", b"connection: close", b"x: " + b"y" * 900]
        ),
        max_size=3,
    )
    return st.builds(request, methods, targets, headers, st.binary(max_size=60), st.booleans())


def request(
    method: bytes, target: bytes, headers: list[bytes], body: bytes, chunked: bool
) -> bytes:
    if chunked:
        headers = [*headers, b"transfer-encoding: chunked"]
        sent = b"".join(
            b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:9], body[9:]) if part
        )
        sent += b"0\r\n\r\n"
    else:
        sent = body if method in (b"POST", b"PUT") else b""
        headers = [*headers, b"content-length: %d" % len(sent)]
    lines = [b"%b %b HTTP/1.1" % (method, target), b"host: x", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + sent


class Application:
    """Answers each request with its number; keeps what it was told."""

    def __init__(self) -> None:
        self.scopes: list[Any] = []
        self.whole: list[tuple[Any, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        number = len(self.scopes)
        self.scopes.append(scope)
        extensions = scope.get("extensions") or {}
        client: Client = extensions.get(EXTENSION) or AsgiClient(receive, send)
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message["more_body"]
        client.watch()
        self.whole.append((scope, body))
        said = b"%d" % number
        if number % 3 == 1:
            await asyncio.sleep(0)
        if number % 2:
            client.start(200, [], None, said)
        else:
            client.start(200, [], len(said))
            await asyncio.sleep(0)
            client.write(said)
        client.end()
        await client.drained()


async def converse(parser: str, parts: list[bytes]) -> tuple[Application, KeptTransport, list[Any]]:
    """Send these, a few turns of the loop apart."""
    application = Application()
    loop = asyncio.get_running_loop()
    problems: list[Any] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    config = uvicorn.Config(application, http="h11", ws="none", lifespan="off", log_config=None)
    config.h11_max_incomplete_event_size = LIMITS.max_head
    protocol = PROTOCOLS[parser](
        lambda: LIMITS,
        lambda code: None,
        config=config,
        server_state=ServerState(),
        app_state={},
        _loop=loop,
    )
    transport = KeptTransport(protocol)
    protocol.connection_made(transport)
    for part in parts:
        if transport.lost:
            break
        protocol.data_received(part)
        await asyncio.sleep(0)
    for _ in range(40):
        await asyncio.sleep(0)
    for _ in range(5 * len(application.scopes)):
        await asyncio.sleep(0)
    said = bytes(transport.written)
    transport.close()
    for _ in range(10):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, left
    transport.written[:] = said
    return application, transport, problems


def answers(written: bytes, methods: Iterator[str]) -> list[tuple[int, bytes]]:
    """What a strict client reads: whole answers and nothing else."""
    found = []
    while written:
        while written.startswith(b"HTTP/1.1 100 "):
            written = written.partition(b"\r\n\r\n")[2]
        connection = h11.Connection(h11.CLIENT)
        method = next(methods, "GET")
        connection.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        connection.send(h11.EndOfMessage())
        connection.receive_data(written)
        head = connection.next_event()
        assert isinstance(head, h11.Response), written
        body = b""
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
        assert isinstance(event, h11.EndOfMessage), (event, written)
        found.append((head.status_code, body))
        written = connection.trailing_data[0]
    return found


def check(parser: str, parts: list[bytes]) -> tuple[Application, list[tuple[int, bytes]]]:
    application, transport, problems = asyncio.run(converse(parser, parts))
    assert problems == []
    methods = [scope["method"] for scope in application.scopes]
    found = answers(bytes(transport.written), iter(methods))
    served = [int(body) for status, body in found if status == 200 and body]
    assert served == sorted(served)
    *before, last = found or [(200, b"")]
    assert all(status == 200 for status, _ in before)
    assert last[0] == 200 or 400 <= last[0] < 500
    for scope, body in application.whole:
        names = [name for name, _ in scope["headers"]]
        fields = dict(scope["headers"])
        assert scope["method"] not in ("TRACE", "CONNECT")
        assert names.count(b"host") == 1 or scope["http_version"] == "1.0"
        assert names.count(b"content-length") + names.count(b"transfer-encoding") <= 1
        assert fields.get(b"transfer-encoding", b"chunked").lower() == b"chunked"
        if b"content-length" in fields:
            assert len(body) == int(fields[b"content-length"])
    return application, found


@pytest.mark.parametrize("parser", PROTOCOLS)
@effort(150)
@given(st.data())
def test_requests_are_answered_in_step_however_they_are_cut(
    parser: str, data: st.DataObject
) -> None:
    sent = data.draw(st.lists(requests(), min_size=1, max_size=5))
    check(parser, data.draw(pieces(b"".join(sent))))


@pytest.mark.parametrize("parser", PROTOCOLS)
@effort(400)
@given(st.data())
def test_nearly_requests_end_in_a_refusal_or_are_requests(parser: str, data: st.DataObject) -> None:
    sent = b"".join(data.draw(st.lists(requests(), min_size=1, max_size=4)))
    check(parser, data.draw(pieces(data.draw(mutated(sent)))))


@pytest.mark.parametrize("parser", PROTOCOLS)
@effort(100)
@given(st.binary(max_size=300), st.data())
def test_any_bytes(parser: str, junk: bytes, data: st.DataObject) -> None:
    check(parser, data.draw(pieces(junk)))


@pytest.mark.parametrize("parser", PROTOCOLS)
def test_the_fuzzer_sees_whole_conversations(parser: str) -> None:
    """It would pass if nothing was ever answered."""
    body = request(b"POST", b"/v1/x", [], b"hello", True)
    application, found = check(parser, [body * 3])
    assert [status for status, _ in found] == [200, 200, 200]
    assert [body for _, body in application.whole] == [b"hello"] * 3
