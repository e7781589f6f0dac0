"""Answers that never end, grow without bound or are not taken, and requests that come back."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
import zlib
from collections.abc import Iterator

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import End, RawClient
from tests.harness.routes import CHAT, text
from tests.process.requests import BODY, still_serves

MB = 1 << 20
STREAM = CHAT.stream()


@pytest.fixture(scope="module", params=["httptools", "h11"])
def gw(
    request: pytest.FixtureRequest, shared_backend: FakeBackend, module_gateway: StartGateway
) -> GatewayProcess:
    return module_gateway(
        [shared_backend],
        server={"parser": request.param, "write_timeout": 1.0, "stream_ping": 0.2},
        health={"unhealthy_after": 1000, "interval": 60.0},
    )


@pytest.fixture
def client(gw: GatewayProcess) -> Iterator[RawClient]:
    with gw.client() as connected:
        yield connected


# clients that do not take their answers


def test_a_client_that_never_reads_is_given_up(
    gw: GatewayProcess, client: RawClient, backend: FakeBackend
) -> None:
    backend.behave(itl=0.001, texts=("x" * 60_000,) * 2000)
    client.request(CHAT.path, STREAM)
    [request] = backend.wait_requests(1)
    backend.wait_closed(request)
    assert not request.complete
    gw.settles_idle()


def test_a_client_that_reads_slowly_is_not(
    gw: GatewayProcess, client: RawClient, backend: FakeBackend
) -> None:
    """It takes several times the limit, and something all the time."""
    backend.behave(texts=("x" * 60_000,) * 400)
    client.request(CHAT.path, STREAM)
    got = b""
    begin = time.monotonic()
    while b"[DONE]" not in got[-100:]:
        more = client._socket.recv(600_000)
        assert more
        got += more
        time.sleep(0.1)
    assert time.monotonic() - begin > 3.0
    assert got.count(b"x") > 400 * 60_000
    gw.settles_idle()


def test_a_client_that_leaves_after_the_last_event_frees_the_engine_soon(
    gw: GatewayProcess, client: RawClient, backend: FakeBackend
) -> None:
    backend.behave(tail=60.0)
    client.request(CHAT.path, STREAM)
    assert client.answer(lambda answer: answer.stream.done).stream.done
    [request] = backend.requests
    client.close()
    left = time.monotonic()
    backend.wait_closed(request, timeout=20.0)
    assert 3.0 < time.monotonic() - left < 15.0
    gw.settles_idle()


# answers that grow


def test_a_huge_answer_in_place_of_a_silent_stream_is_no_event(
    gw: GatewayProcess, client: RawClient, backend: FakeBackend
) -> None:
    backend.behave(ttft=0.6)
    backend.next(
        script=(
            0.6,
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
            b"content-length: 50000000\r\n\r\n",
            *([b" " * MB] * 20),
            5.0,
        )
    )
    client.request(CHAT.path, STREAM)
    answer = client.answer()
    assert answer.stream.comments
    [event] = answer.stream.events
    assert json.loads(event.data)["error"]["type"] == "upstream_error"
    assert answer.end is End.FRAMED
    gw.settles_idle()


BOMB_BYTES = 100 * MB


def bomb() -> bytes:
    encoder = zlib.compressobj(9, wbits=31)
    data = encoder.compress(b"data: {}\n\n")
    return data + b"".join(encoder.compress(bytes(MB)) for _ in range(100)) + encoder.flush()


@pytest.mark.parametrize("accepts", [False, True], ids=["plain", "gzip"])
def test_a_stream_that_inflates_without_end_costs_no_memory(
    gw: GatewayProcess, backend: FakeBackend, accepts: bool
) -> None:
    data = bomb()
    head = (
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    backend.behave(script=(head.encode() + data, 0.2))
    before = gw.rss()
    with gw.client() as client:
        named = [("accept-encoding", "gzip")] if accepts else []
        client.request(CHAT.path, STREAM, headers=named)
        answer = client.answer()
    if accepts:
        assert answer.end is End.FRAMED
        assert len(gzip.decompress(answer.body)) > BOMB_BYTES
    else:
        assert answer.end is not End.FRAMED or answer.status == 502
    assert gw.rss() - before < 0.6 * BOMB_BYTES
    gw.settles_idle()
    backend.behave()
    still_serves(gw)


# requests that come back


def test_a_gateway_that_is_its_own_backend_says_so(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Where probes do not find it out first."""
    backend = start_backend()
    gw = gateway(
        [backend],
        entry={"models": ["m"]},
        health={"probes": False},
        policy={"name": "round_robin"},
        retries={"max_retries": 0},
    )
    gw.admin("POST", "/backends", {"url": gw.url, "models": ["m"]})
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 2)
    answers = [gw.post(CHAT.path, CHAT.body([text(f"{n}", 100)])) for n in range(6)]
    looped = [answer for answer in answers if answer.status_code != 200]
    assert looped
    for answer in looped:
        assert answer.status_code == 508
        assert answer.json()["error"]["code"] == "loop_detected"
    assert len(backend.requests) == len(answers) - len(looped)
    gw.settles_idle()


def test_two_gateways_that_send_to_each_other_end_it(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    rotate = {"policy": {"name": "round_robin"}, "retries": {"max_retries": 0}}
    first, second = gateway([backend], **rotate), gateway([backend], **rotate)
    first.admin("POST", "/backends", {"url": second.url})
    second.admin("POST", "/backends", {"url": first.url})
    for gw in (first, second):
        gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 2)
    statuses = [
        gw.post(CHAT.path, CHAT.body([text(f"{n}", 100)])).status_code
        for n in range(6)
        for gw in (first, second)
    ]
    assert set(statuses) <= {200, 508}
    assert len(backend.requests) == statuses.count(200)


def test_via_names_each_hop(client: RawClient, backend: FakeBackend) -> None:
    client.exchange(CHAT.path, BODY)
    client.exchange(CHAT.path, BODY, headers=[("via", "1.1 edge"), ("via", "2 cdn")])
    own, hops = (request.header(b"via") for request in backend.requests)
    assert own is not None
    assert own.startswith(b"1.1 prefixgate-")
    assert hops == b"1.1 edge, 2 cdn, " + own


# what a client names its request


@pytest.mark.parametrize("named", ["plain-id_1.2", "x" * 128])
def test_a_request_id_is_given_back(client: RawClient, named: str) -> None:
    answer = client.exchange(CHAT.path, BODY, headers=[("x-request-id", named)])
    assert answer.header("x-request-id") == named


@pytest.mark.parametrize("named", ["x" * 129, "two words", "\xe9", ""])
def test_other_request_ids_are_not(client: RawClient, named: str) -> None:
    answer = client.exchange(CHAT.path, BODY, headers=[("x-request-id", named)])
    assert answer.status == 200
    assert answer.header("x-request-id") not in (named, None)


@pytest.mark.parametrize("path", ["/live", "/ready", "/v1/models", "/metrics", "/admin/v1/nothing"])
def test_the_gateways_own_pages_have_an_id_too(client: RawClient, path: str) -> None:
    named = client.exchange(path, method="GET", headers=[("x-request-id", "mine")])
    assert named.header("x-request-id") == "mine"
    answer = client.exchange(path, method="GET")
    assert len(answer.all("x-request-id")) == 1
    with contextlib.suppress(ValueError):
        assert answer.header("x-request-id") != named.header("x-request-id")
