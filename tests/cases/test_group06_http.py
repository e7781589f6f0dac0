"""Group 6: HTTP's edges on both sides. Framing (H07) is also in tests/process/test_framing.py."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import random
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from gateway.config import Server
from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import Answer, End, RawClient
from tests.harness.routes import CHAT, EMBEDDINGS, MESSAGES, STREAMING, Json, Route, text

MAX_BODY = 16_000_000
MB = 1_000_000


@pytest.fixture(scope="module", params=["httptools", "h11"])
def gw(
    request: pytest.FixtureRequest, shared_backend: FakeBackend, module_gateway: StartGateway
) -> GatewayProcess:
    return module_gateway(
        [shared_backend],
        server={"max_body": MAX_BODY, "body_timeout": 2.0, "parser": request.param},
        health={"unhealthy_after": 1000, "interval": 60.0},
        scheduling={"gate": None},
    )


# H03

PROMPT = text("compressed", 5000)
PLAIN = json.dumps(CHAT.body([PROMPT])).encode()


def two_members(data: bytes) -> bytes:
    return gzip.compress(data[:1000]) + gzip.compress(data[1000:])


def raw_deflate(data: bytes) -> bytes:
    encoder = zlib.compressobj(wbits=-15)
    return encoder.compress(data) + encoder.flush()


CODED: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "in upper case": ("GZIP", gzip.compress),
    "two members": ("gzip", two_members),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "identity": ("identity", bytes),
}


@pytest.mark.parametrize(("coding", "encode"), CODED.values(), ids=CODED)
def test_H03_compressed_bodies_are_routed_by_content_and_arrive_plain(
    gw: GatewayProcess, backend: FakeBackend, coding: str, encode: Callable[[bytes], bytes]
) -> None:
    assert gw.post(CHAT.path, PLAIN).status_code == 200
    answer = gw.post(CHAT.path, encode(PLAIN), content_encoding=coding)
    assert answer.status_code == 200
    assert int(answer.headers["x-prefixgate-matched-tokens"]) > 1000
    received = backend.requests[-1]
    assert received.body == PLAIN
    assert received.header(b"content-encoding") is None
    assert received.header(b"content-length") == b"%d" % len(PLAIN)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress", "chunked"])
@pytest.mark.parametrize("route", [CHAT, MESSAGES, EMBEDDINGS], ids=lambda route: route.name)
def test_H03_other_codings_are_refused(
    gw: GatewayProcess, backend: FakeBackend, route: Route, coding: str
) -> None:
    answer = gw.post(route.path, b"x" * 100, content_encoding=coding)
    assert answer.status_code == 415
    assert "gzip, deflate or identity" in answer.json()["error"]["message"]
    assert backend.requests == []


@pytest.mark.parametrize(
    "body",
    [
        PLAIN,
        gzip.compress(PLAIN)[:-20],
        gzip.compress(PLAIN) + b"more",
        gzip.compress(b"") * 2000,
        b"\x1f\x8b",
    ],
    ids=["plain", "cut", "more behind", "many members", "a head only"],
)
def test_H03_broken_compression_is_the_clients_fault(
    gw: GatewayProcess, backend: FakeBackend, body: bytes
) -> None:
    answer = gw.post(CHAT.path, body, content_encoding="gzip")
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_content_encoding"
    assert backend.requests == []


def test_H03_a_bomb_is_refused_before_it_grows(gw: GatewayProcess, backend: FakeBackend) -> None:
    """A gigabyte of zeros, compressed twice over: two members hold as much as is wanted."""
    encoder = zlib.compressobj(9, wbits=31)
    zeros = bytes(MB)
    bomb = b"".join(encoder.compress(zeros) for _ in range(1000)) + encoder.flush()
    assert len(bomb) < 1_100_000
    gw.post(CHAT.path, PLAIN)
    backend.requests.clear()
    before = gw.rss()
    for body in (bomb, bomb[:10_000], bomb):
        answer = gw.post(CHAT.path, body, content_encoding="gzip")
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "body_too_large"
    assert gw.rss() - before < 3 * MAX_BODY
    assert backend.requests == []


def test_H03_the_limit_is_for_the_plain_body(gw: GatewayProcess, backend: FakeBackend) -> None:
    over = gzip.compress(pictures(MAX_BODY + 1), 1)
    assert len(over) < MAX_BODY
    assert gw.post(CHAT.path, over, content_encoding="gzip").status_code == 413
    assert backend.requests == []


# H04


def pictures(size: int) -> bytes:
    """A chat body of exactly so many bytes, with pictures in it."""
    rng = random.Random(size)
    parts: list[Json] = [{"type": "text", "text": "What is in these?"}]
    for _ in range(3):
        data = base64.b64encode(rng.randbytes(size // 5)).decode()
        parts.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}})
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]}).encode()
    return body[:-1] + b" " * (size - len(body)) + b"}"


def send_chunked(client: RawClient, body: bytes) -> None:
    client.send(
        f"POST {CHAT.path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        "transfer-encoding: chunked\r\n\r\n".encode()
    )
    for at in range(0, len(body), MB):
        part = body[at : at + MB]
        client.send(b"%x\r\n%b\r\n" % (len(part), part))
    client.send(b"0\r\n\r\n")


def exchange(client: RawClient, body: bytes, *, chunked: bool) -> Answer:
    with contextlib.suppress(OSError):  # it may be refused before all of it is sent
        if chunked:
            send_chunked(client, body)
        else:
            client.request(CHAT.path, body)
    return client.answer()


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("size", [12 * MB, MAX_BODY - 1, MAX_BODY])
def test_H04_multimodal_bodies_fit(
    gw: GatewayProcess, backend: FakeBackend, size: int, chunked: bool
) -> None:
    body = pictures(size)
    assert len(body) == size
    with gw.client(timeout=60.0) as client:
        assert exchange(client, body, chunked=chunked).status == 200
    assert backend.requests[0].body == body


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_H04_one_byte_more_is_refused(
    gw: GatewayProcess, backend: FakeBackend, chunked: bool
) -> None:
    with gw.client() as client:
        answer = exchange(client, pictures(MAX_BODY + 1), chunked=chunked)
    assert answer.status == 413
    assert answer.json["error"]["code"] == "body_too_large"
    assert backend.requests == []


def test_H04_what_is_announced_too_large_is_refused_unread(
    gw: GatewayProcess, backend: FakeBackend
) -> None:
    with gw.client() as client:
        length = f"content-length: {MAX_BODY + 1}"
        client.send(f"POST {CHAT.path} HTTP/1.1\r\nhost: x\r\n{length}\r\n\r\n".encode())
        answer = client.answer()
        assert (answer.status, answer.header("connection")) == (413, "close")
        assert client.closed_by_peer()
    assert backend.requests == []


def test_H04_bodies_together_are_bounded(gateway: StartGateway, backend: FakeBackend) -> None:
    """Those that a backend has taken, and those whose client left, count no more."""
    gw = gateway(
        [backend],
        server={"max_body": 100_000, "max_body_total": 250_000},
        scheduling={"gate": None, "pace": None},
    )
    content = text("much", 95_000)
    plain = json.dumps(CHAT.body([content])).encode()
    backend.behave(itl=0.2, n_tokens=1000)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            client = stack.enter_context(gw.client())
            client.request(CHAT.path, CHAT.stream([content]))
            client.events(2)
        backend.behave(hang=True)
        with gw.client() as first, gw.client() as second:
            first.request(CHAT.path, plain)
            second.request(CHAT.path, plain)
            backend.wait_requests(6)
            answer = gw.post(CHAT.path, plain)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "bodies_full")
            assert answer.headers["retry-after"] == "1"
        gw.settles(lambda metrics: metrics.total("prefixgate_in_flight") == 4)
        backend.behave()
        assert gw.post(CHAT.path, plain).status_code == 200


# H09


def exchanges_after_idling(
    gw: GatewayProcess, body: Json, pauses: list[float], wrong: list[object]
) -> None:
    with gw.client(timeout=20.0) as client:
        for pause in pauses:
            answer = client.exchange(CHAT.path, body)
            if answer.status != 200 or answer.end is not End.FRAMED:
                wrong.append((answer.status, answer.end, answer.body[:200]))
            time.sleep(pause)


def test_H09_idle_connections_that_a_backend_closes_cost_nobody_an_answer(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Five seconds is what engines wait."""
    gw = gateway([start_backend(keep_alive=5.0)], health={"interval": 60.0})
    wrong: list[object] = []
    rng = random.Random(9)
    threads = [
        threading.Thread(
            target=exchanges_after_idling,
            args=(
                gw,
                CHAT.stream() if number % 2 else CHAT.body(["hello"]),
                [rng.uniform(4.9, 5.1), 0.0],
                wrong,
            ),
        )
        for number in range(100)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert gw.metrics().outcomes == {"ok": 200}


@pytest.mark.parametrize("body", [CHAT.body(["hello"]), CHAT.stream()], ids=["plain", "stream"])
def test_H09_a_connection_closed_as_it_is_taken_is_replaced(
    start_backend: StartBackend, gateway: StartGateway, body: Json
) -> None:
    """The gaps are as long as the backend waits, to the millisecond."""
    gw = gateway([start_backend(keep_alive=0.1)], health={"interval": 60.0})
    for turn in range(40):
        assert gw.post(CHAT.path, body).status_code == 200
        time.sleep(0.095 + 0.0003 * turn)


def test_H09_clients_connections_are_kept_for_longer_than_a_minute() -> None:
    assert Server().keep_alive > 60


# H10


def test_H10_slow_bodies_hold_nobody_up(gw: GatewayProcess, backend: FakeBackend) -> None:
    before = gw.metrics()
    slow = [gw.client() for _ in range(500)]
    begin = time.monotonic()
    head = f"POST {CHAT.path} HTTP/1.1\r\nhost: x\r\ncontent-length: {MB}\r\n\r\n"
    for client in slow:
        client.send(head.encode() + b"{")
    others: list[float] = []
    while time.monotonic() - begin < 1.0:
        at = time.monotonic()
        assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
        others.append(time.monotonic() - at)
    metrics = gw.metrics()
    assert metrics.total("prefixgate_queue_depth") == 0
    assert metrics.total("prefixgate_backend_in_flight") == 0
    assert all(request.body != b"{" for request in backend.requests)
    assert sorted(others)[len(others) // 2] < 0.5
    for client in slow:
        answer = client.answer()
        assert (answer.status, answer.json["error"]["code"]) == (408, "slow_body")
        client.close()
    assert time.monotonic() - begin < 20
    ended = gw.outcomes_since(before, 500 + len(others))
    assert ended == {"client_error": 500, "ok": len(others)}


# H12


@pytest.mark.parametrize("route", [*STREAMING, EMBEDDINGS], ids=lambda route: route.name)
@pytest.mark.parametrize("priority", [False, True], ids=["as it came", "with a priority"])
def test_H12_bodies_keep_their_content_type(
    start_backend: StartBackend, gateway: StartGateway, route: Route, priority: bool
) -> None:
    """Also where the gateway has written something into them."""
    backend = start_backend()
    gw = gateway([])
    entry = {"url": backend.url, "kind": "vllm", "priority": True}
    gw.admin("POST", "/backends", entry)
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 1)
    headers: dict[str, Any] = {"x-prefixgate-priority": "high"} if priority else {}
    assert gw.post(route.path, route.body(["hello"]), **headers).status_code == 200
    [request] = backend.requests
    assert request.header(b"content-type") == b"application/json"
    assert request.header(b"content-length") == b"%d" % len(request.body)
    assert json.loads(request.body)["model"] == "m"


def test_H12_answers_of_the_gateway_say_what_they_are(gw: GatewayProcess) -> None:
    for path in ("/live", "/ready", "/v1/models", "/nothing-here"):
        assert gw.http.get(path).headers["content-type"] == "application/json"
    assert gw.post(CHAT.path, b"{").headers["content-type"] == "application/json"
