"""How requests are framed, how large and slow they may be, and requests that are broken."""

from __future__ import annotations

import json
import time

import pytest

from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import End, RawClient
from tests.harness.routes import CHAT, MESSAGES, Route
from tests.process.requests import BODY, MAX_BODY, chat_head, filled, openai_error, still_serves

# framings of a request


def test_a_chunked_body_arrives_whole(client: RawClient, backend: FakeBackend) -> None:
    client.send(chat_head("transfer-encoding: chunked"))
    for at in range(0, len(BODY), 7):
        part = BODY[at : at + 7]
        client.send(b"%x;ext=1\r\n%b\r\n" % (len(part), part))
    client.send(b"0\r\nx-trailer: 1\r\n\r\n")
    assert client.answer().status == 200
    [request] = backend.requests
    assert request.body == BODY
    assert request.header(b"content-length") == b"%d" % len(BODY)
    assert request.header(b"transfer-encoding") is None
    assert client.exchange(CHAT.path, BODY).status == 200


def test_expect_100_continue(client: RawClient, backend: FakeBackend) -> None:
    client.send(chat_head(f"content-length: {len(BODY)}", "expect: 100-continue"))
    interim = b""
    while b"\r\n\r\n" not in interim:
        interim += client._socket.recv(1000)
    assert interim.startswith(b"HTTP/1.1 100 ")
    client.send(BODY)
    assert client.answer().status == 200
    assert backend.requests[0].header(b"expect") is None


def test_a_refused_expectation_gets_its_answer_at_once(client: RawClient) -> None:
    client.send(chat_head(f"content-length: {MAX_BODY + 1}", "expect: 100-continue"))
    got = b""
    while b"\r\n\r\n" not in got:
        got += client._socket.recv(1000)
    assert got.startswith(b"HTTP/1.1 413 ")


def test_connection_close(client: RawClient) -> None:
    answer = client.exchange(CHAT.path, BODY, headers=[("connection", "close")])
    assert answer.status == 200
    assert answer.header("connection") == "close"
    assert client.closed_by_peer()


def test_keep_alive_is_the_default(client: RawClient, backend: FakeBackend) -> None:
    for _ in range(3):
        answer = client.exchange(CHAT.path, BODY)
        assert answer.header("connection") is None
    assert len(backend.requests) == 3


def test_http_1_0_is_closed_after_the_answer(client: RawClient) -> None:
    head = chat_head(f"content-length: {len(BODY)}").replace(b"HTTP/1.1", b"HTTP/1.0")
    client.send(head + BODY)
    answer = client.answer()
    assert answer.status == 200
    assert answer.json["object"] == "chat.completion"
    assert client.closed_by_peer()


def test_pipelined_requests_are_answered_in_order(client: RawClient, backend: FakeBackend) -> None:
    """Later ones are quicker, and among them are an error, a stream and a route of our own."""
    backend.rule = lambda request: None
    backend.next(ttft=0.2, texts=("first",))
    backend.next(ttft=0.1, n_tokens=3)
    backend.next(texts=("last",))
    stream = json.dumps(CHAT.stream(["hello"])).encode()
    wrong = b'{"model":"nobody"}'
    bodies = [BODY, stream, wrong, BODY]
    heads = [chat_head(f"content-length: {len(body)}") for body in bodies]
    live = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"
    client.send(b"".join(a + b for a, b in zip(heads[:3], bodies[:3], strict=True)) + live)
    client.send(heads[3] + bodies[3])
    answers = [client.answer() for _ in range(5)]
    assert [answer.status for answer in answers] == [200, 200, 404, 200, 200]
    assert answers[0].json["choices"][0]["message"]["content"] == "first"
    assert answers[1].stream.done
    assert answers[3].json == {"status": "ok"}
    assert answers[4].json["choices"][0]["message"]["content"] == "last"


# limits


@pytest.mark.parametrize("size", [MAX_BODY - 1, MAX_BODY])
def test_bodies_within_the_limit(client: RawClient, backend: FakeBackend, size: int) -> None:
    assert client.exchange(CHAT.path, filled(size)).status == 200
    assert len(backend.requests[0].body) == size


@pytest.mark.parametrize("route", [CHAT, MESSAGES], ids=lambda route: route.name)
def test_bodies_over_the_limit(client: RawClient, backend: FakeBackend, route: Route) -> None:
    answer = client.exchange(route.path, filled(MAX_BODY + 1, route))
    assert answer.status == 413
    assert answer.header("connection") == "close"
    assert answer.end is End.FRAMED
    if route is CHAT:
        assert openai_error(answer)["code"] == "body_too_large"
    else:
        assert answer.json["error"]["type"] == "request_too_large"
    assert client.closed_by_peer()
    assert backend.requests == []


def test_an_announced_body_over_the_limit_is_refused_unread(client: RawClient) -> None:
    client.send(chat_head("content-length: 100000000000"))
    answer = client.answer()
    assert (answer.status, answer.header("connection")) == (413, "close")
    assert client.closed_by_peer()


def test_an_unannounced_body_over_the_limit_is_refused(client: RawClient) -> None:
    client.send(chat_head("transfer-encoding: chunked"))
    client.send(b"%x\r\n%b\r\n" % (MAX_BODY + 1, b"x" * (MAX_BODY + 1)))
    answer = client.answer()
    assert (answer.status, answer.header("connection")) == (413, "close")


@pytest.mark.parametrize("route", [CHAT, MESSAGES], ids=lambda route: route.name)
def test_a_slow_body(client: RawClient, gw: GatewayProcess, route: Route) -> None:
    before = gw.metrics()
    client.send(chat_head("content-length: 1000", path=route.path) + b'{"model"')
    answer = client.answer()
    assert (answer.status, answer.header("connection")) == (408, "close")
    if route is CHAT:
        assert openai_error(answer)["code"] == "slow_body"
    else:
        assert answer.json["error"]["type"] == "timeout_error"
    assert client.closed_by_peer()
    assert gw.outcomes_since(before) == {"client_error": 1}


def test_a_body_that_trickles_is_cut_off(client: RawClient) -> None:
    """The limit is for the whole body, not for the pause between two parts of it."""
    client.send(chat_head("content-length: 1000"))
    started = time.monotonic()
    try:
        while time.monotonic() - started < 10:
            client.send(b" ")
            time.sleep(0.1)
    except (BrokenPipeError, ConnectionResetError):
        pass
    assert time.monotonic() - started < 5


# broken requests


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GARBAGE\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: abc\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/\xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
        b"CONNECT example.test:443 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /live HTTP/9.9\r\nhost: x\r\n\r\n",
        b"GET /live HTTP/1.1\r\nbroken header\r\n\r\n",
    ],
)
def test_broken_requests_end_in_an_error_of_theirs(gw: GatewayProcess, data: bytes) -> None:
    with gw.client(timeout=5.0) as client:
        client.send(data)
        # Some of these only one of the two parsers minds; none may be a 5xx or silence.
        status = client.answer().status
    assert status < 500
    still_serves(gw)
    assert "Traceback" not in gw.log
    assert gw.metrics().total("prefixgate_in_flight") == 0


HIDDEN = b"POST /v1/hidden HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
LENGTH = f"content-length: {len(BODY)}"


def framed(*lines: str | bytes, body: bytes = BODY, version: str = "1.1") -> bytes:
    """A request with these lines as they are, its body, and one more behind it."""
    fields = [line if isinstance(line, bytes) else line.encode() for line in lines]
    head = [f"POST {CHAT.path} HTTP/{version}".encode(), b"host: x", *fields, b"", b""]
    return b"\r\n".join(head) + body + HIDDEN


AMBIGUOUS = {
    "length and chunked": framed(LENGTH, "transfer-encoding: chunked", body=CHUNKED),
    "chunked and length": framed("transfer-encoding: chunked", "content-length: 4", body=CHUNKED),
    "two lengths": framed(LENGTH, "content-length: 5"),
    "two equal lengths": framed(LENGTH, LENGTH),
    "a list of lengths": framed(f"{LENGTH}, {len(BODY)}"),
    "a list of two lengths": framed(f"{LENGTH}, 5"),
    "a signed length": framed(f"content-length: +{len(BODY)}"),
    "a negative length": framed("content-length: -1"),
    "a hexadecimal length": framed(f"content-length: {len(BODY):#x}"),
    "an empty length": framed("content-length:"),
    "a length beyond 64 bits": framed("content-length: 18446744073709551617"),
    "a length of 5000 digits": framed("content-length: " + "1" * 5000),
    "a space before the colon": framed(f"content-length : {len(BODY)}"),
    "a space before the first header": framed(" " + LENGTH),
    "chunked with a tab": framed("transfer-encoding: chunked\t", body=CHUNKED),
    "chunked with a form feed": framed("transfer-encoding: \x0cchunked", body=CHUNKED),
    "xchunked": framed("transfer-encoding: xchunked", body=CHUNKED),
    "chunked in quotes": framed('transfer-encoding: "chunked"', body=CHUNKED),
    "chunked twice": framed("transfer-encoding: chunked, chunked", body=CHUNKED),
    "two lines of chunked": framed(*["transfer-encoding: chunked"] * 2, body=CHUNKED),
    "gzip and chunked": framed("transfer-encoding: gzip, chunked", body=CHUNKED),
    "chunked and identity": framed("transfer-encoding: chunked, identity", body=CHUNKED),
    "identity": framed("transfer-encoding: identity"),
    "a folded coding": framed("transfer-encoding:\r\n chunked", body=CHUNKED),
    "chunked in HTTP/1.0": framed("transfer-encoding: chunked", body=CHUNKED, version="1.0"),
    "a folded header": framed(LENGTH, "x: a\r\n b"),
    "a bare LF": framed(LENGTH, "x: a\ntransfer-encoding: chunked", body=CHUNKED),
    "a bare CR": framed(LENGTH, "x: a\rtransfer-encoding: chunked"),
    "NUL in a value": framed(LENGTH, b"x: a\0b"),
    "a control in a value": framed(LENGTH, b"x: a\x01b"),
    "NUL in a name": framed(LENGTH, b"x\0y: a"),
    "an empty name": framed(LENGTH, ": a"),
    "two hosts": framed(LENGTH, "host: y"),
    "no host": framed(LENGTH).replace(b"host: x\r\n", b"", 1),
    "a signed chunk": framed("transfer-encoding: chunked", body=b"+" + CHUNKED),
    "a hexadecimal chunk": framed("transfer-encoding: chunked", body=b"0x" + CHUNKED),
    "a negative chunk": framed("transfer-encoding: chunked", body=b"-1\r\n\r\n"),
    "a chunk beyond 64 bits": framed("transfer-encoding: chunked", body=b"1" * 17 + b"\r\nx"),
    "a chunk with bare LF": framed(
        "transfer-encoding: chunked", body=CHUNKED.replace(b"\r\n", b"\n")
    ),
    "a chunk that is too long": framed(
        "transfer-encoding: chunked", body=b"%x\r\n%bXX\r\n0\r\n\r\n" % (len(BODY), BODY)
    ),
    "an HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "HTTP/2.0": framed(LENGTH, version="2.0"),
    "HTTP/0.9": b"GET /v1/x\r\n\r\n" + HIDDEN,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    "a space in the target": b"GET /v1/x y HTTP/1.1\r\nhost: x\r\n\r\n" + HIDDEN,
    "bytes in the target": b"GET /v1/\xff HTTP/1.1\r\nhost: x\r\n\r\n" + HIDDEN,
    "CONNECT": b"CONNECT a.test:443 HTTP/1.1\r\nhost: x\r\n\r\n" + HIDDEN,
    "TRACE": b"TRACE /v1/x HTTP/1.1\r\nhost: x\r\n\r\n" + HIDDEN,
    "an upgrade to h2c": framed(LENGTH, "connection: upgrade", "upgrade: h2c"),
    "a websocket": framed(LENGTH, "connection: upgrade", "upgrade: websocket"),
}
"""What two readers could take for different requests, and what is no request of ours."""


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_H07_ambiguous_framing_is_refused_or_read_in_one_way(
    gw: GatewayProcess, client: RawClient, backend: FakeBackend, data: bytes
) -> None:
    """What is refused ends the connection; what is not is one clean request, or is followed by the
    one behind it as a request of its own."""
    client.send(data)
    answer = client.answer()
    assert answer.end is End.FRAMED
    if answer.status == 200:
        ours, *behind = backend.requests
        assert ours.body == BODY
        assert ours.header(b"transfer-encoding") is None
        assert ours.header(b"content-length") == b"%d" % len(BODY)
        assert [request.path for request in behind] in ([], ["/v1/hidden"])
    else:
        assert answer.status in (400, 405, 408, 413)
        assert answer.header("connection") == "close"
        assert answer.json["error"]["message"]
        assert client.closed_by_peer()
        assert backend.requests == []
    still_serves(gw)
    assert "Traceback" not in gw.log
    assert gw.metrics().total("prefixgate_in_flight") == 0


def test_an_absolute_target_leads_nowhere_else(client: RawClient, backend: FakeBackend) -> None:
    backend.pages["/v1/page"] = b"{}"
    client.send(b"GET http://elsewhere.test/v1/page HTTP/1.1\r\nhost: x\r\n\r\n")
    assert client.answer().status in (200, 404)
    for probe in backend.probes:
        assert b"elsewhere" not in b"".join(value for _, value in probe.headers)
        assert probe.target.startswith("/")


def test_a_websocket_upgrade_is_refused_or_an_ordinary_request(
    gw: GatewayProcess, client: RawClient, backend: FakeBackend
) -> None:
    """h11 reads on after it; httptools does not, and what follows must not become a request."""
    backend.pages["/v1/realtime"] = b"{}"
    client.request(
        "/v1/realtime",
        method="GET",
        headers=[
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-version", "13"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ],
    )
    answer = client.answer()
    if answer.status == 400:
        assert b"upgrade_not_supported" in answer.body
        assert client.closed_by_peer()
    else:
        assert answer.status == 200
        [request] = [probe for probe in backend.probes if probe.path == "/v1/realtime"]
        assert request.header(b"upgrade") is None
        assert request.header(b"connection") is None
    still_serves(gw)
    assert "Traceback" not in gw.log


def test_half_a_request_and_gone(gw: GatewayProcess) -> None:
    for data in (b"", b"PO", b"POST /v1/chat/completions HTTP/1.1\r\nhos", chat_head()):
        for leave in (RawClient.close, RawClient.reset):
            client = gw.client()
            client.send(data)
            leave(client)
    gw.settles_idle()
    still_serves(gw)
    assert "Traceback" not in gw.log
