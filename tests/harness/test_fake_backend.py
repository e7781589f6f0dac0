"""The fake backend does what its knobs say; without the gateway."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator

import httpx
import pytest

from tests.harness.behaviour import Cut, Framing, Inside, UsageStyle
from tests.harness.fake_backend import FakeBackend, Health
from tests.harness.raw import Answer, End, RawClient
from tests.harness.routes import STREAMING, Route

CHAT = "/v1/chat/completions"
STREAM = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
PLAIN = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    with FakeBackend() as running:
        yield running


@pytest.fixture
def client(backend: FakeBackend) -> Iterator[RawClient]:
    with RawClient(backend.port) as connected:
        yield connected


def test_records_bytes_headers_and_order(backend: FakeBackend, client: RawClient) -> None:
    body = b'{"model": "m",  "x":1e5}'
    client.request(CHAT + "?beta=true", body, headers=[("X-Odd", "a"), ("x-odd", "b")])
    assert client.answer().status == 200
    [request] = backend.requests
    assert request.body == body
    assert request.target == CHAT + "?beta=true"
    assert [pair for pair in request.headers if pair[0].lower() == b"x-odd"] == [
        (b"X-Odd", b"a"),
        (b"x-odd", b"b"),
    ]
    assert request.complete
    assert request.closed is None


def test_reads_chunked_requests_and_pipelined_ones(backend: FakeBackend, client: RawClient) -> None:
    chunked = b"POST /v1/x HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
    client.send((chunked + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n") * 2)
    assert client.answer().status == client.answer().status == 200
    assert [request.body for request in backend.requests] == [b"abcde", b"abcde"]
    assert {request.connection for request in backend.requests} == {0}


@pytest.mark.parametrize(
    ("framing", "end"),
    [
        (Framing.CHUNKED, End.FRAMED),
        (Framing.CLOSE, End.CLOSED),
        (Framing.HTTP10, End.CLOSED),
        (Framing.BOTH, End.FRAMED),
    ],
)
def test_framings_of_a_stream(
    backend: FakeBackend, client: RawClient, framing: Framing, end: End
) -> None:
    backend.behave(framing=framing, n_tokens=3)
    answer = client.exchange(CHAT, STREAM)
    assert answer.end is end
    assert answer.stream.text == "t0 t1 t2 "
    assert answer.stream.done
    both = bool(answer.all("content-length")) and bool(answer.all("transfer-encoding"))
    assert both is (framing is Framing.BOTH)
    assert answer.version == ("HTTP/1.0" if framing is Framing.HTTP10 else "HTTP/1.1")


@pytest.mark.parametrize("inside", [None, *Inside])
@pytest.mark.parametrize("cut", list(Cut))
def test_cuts(backend: FakeBackend, client: RawClient, cut: Cut, inside: Inside | None) -> None:
    backend.behave(cut_after=2, cut_inside=inside, cut=cut, itl=0.02)
    answer = client.exchange(CHAT, STREAM)
    assert answer.end is (End.RESET if cut is Cut.RST else End.BROKEN)
    if cut is Cut.FIN:  # a reset may throw away what was on its way
        assert len(answer.stream.events) == 2
        assert bool(answer.stream.unfinished) is (inside is not None)
    assert not backend.requests[0].complete


def test_cut_of_a_whole_answer(backend: FakeBackend, client: RawClient) -> None:
    backend.behave(body=b"x" * 1000, cut_after=300)
    answer = client.exchange(CHAT, PLAIN)
    assert (answer.end, len(answer.body)) == (End.BROKEN, 300)


def test_records_when_the_peer_leaves(backend: FakeBackend) -> None:
    backend.behave(ttft=30.0)
    client = RawClient(backend.port)
    client.request(CHAT, STREAM)
    [request] = backend.wait_requests(1)
    assert request.closed is None
    left = time.monotonic()
    client.close()
    assert left <= backend.wait_closed(request)
    assert request.abandoned


def test_a_peer_that_leaves_after_the_end_did_not_abandon(backend: FakeBackend) -> None:
    client = RawClient(backend.port)
    client.exchange(CHAT, PLAIN)
    client.reset()
    [request] = backend.requests
    backend.wait_closed(request)
    assert not request.abandoned


@pytest.mark.parametrize("size", [1, 7])
def test_segments(backend: FakeBackend, client: RawClient, size: int) -> None:
    backend.behave(segment=size, texts=("你好", " 🌍", " é"))
    client.request(CHAT, STREAM)
    sizes: list[int] = []

    def note(answer: Answer) -> bool:
        sizes.append(len(answer.body))
        return False

    client.answer(note)
    assert len(set(sizes)) > 50  # it came in many small parts
    answer = client.exchange(CHAT, STREAM)
    assert answer.stream.text == "你好 🌍 é"


@pytest.mark.parametrize("style", list(UsageStyle))
def test_usage_styles(backend: FakeBackend, client: RawClient, style: UsageStyle) -> None:
    backend.behave(usage=style, n_tokens=4)
    payloads = client.exchange(CHAT, STREAM).stream.payloads
    counts = [payload["usage"]["completion_tokens"] for payload in payloads if "usage" in payload]
    assert (
        counts
        == {
            UsageStyle.NONE: [],
            UsageStyle.SEPARATE: [4],
            UsageStyle.LAST: [4],
            UsageStyle.MIDDLE: [4],
            UsageStyle.EVERY: [0, 1, 2, 3, 4, 4],
        }[style]
    )


def test_gzip_is_flushed_per_event(backend: FakeBackend, client: RawClient) -> None:
    backend.behave(gzip=True, itl=0.02)
    client.request(CHAT, STREAM)
    early = client.answer(lambda answer: len(answer.chunks) >= 2)
    plain = zlib.decompressobj(wbits=31).decompress(early.body)
    assert plain.count(b"\n\n") >= 2


def test_knobs_of_whole_answers(backend: FakeBackend, client: RawClient) -> None:
    backend.next(informational=(100, 103), pieces=3, framing=Framing.CHUNKED)
    backend.next(status=204)
    backend.next(status=429, headers=(("retry-after", "7"),))
    backend.next(framing=Framing.CHUNKED, trailers=(("x-sum", "9"),))
    first = client.exchange(CHAT, PLAIN)
    assert first.json["choices"][0]["message"]["content"] == "t0 t1 t2 t3 t4 "
    assert len(first.chunks) == 3
    assert client.exchange(CHAT, PLAIN).status == 204
    busy = client.exchange(CHAT, PLAIN)
    assert (busy.status, busy.header("retry-after")) == (429, "7")
    assert client.exchange(CHAT, PLAIN).trailers == ["x-sum: 9"]


def test_script_and_rule(backend: FakeBackend, client: RawClient) -> None:
    backend.next(script=(b"HTTP/1.1 200 OK\r\ncontent-", 0.01, b"length: 2\r\n\r\nhi"))
    backend.next(script=(b"HTTP/1.1 2", Cut.FIN))
    assert client.exchange(CHAT, PLAIN).body == b"hi"
    assert client.exchange(CHAT, PLAIN).status == 0


def test_idle_connections_are_closed_on_time() -> None:
    with FakeBackend(keep_alive=0.3) as backend, RawClient(backend.port) as client:
        client.exchange(CHAT, PLAIN)
        answered = time.monotonic()
        assert client.closed_by_peer()
        assert time.monotonic() - answered >= 0.29


def test_pages(backend: FakeBackend) -> None:
    backend.models = ("base", "lora")
    backend.pages["/metrics"] = b"up 1\n"
    with httpx.Client(base_url=backend.url, trust_env=False) as http:
        assert [m["id"] for m in http.get("/v1/models").json()["data"]] == ["base", "lora"]
        assert http.get("/health").status_code == 200
        assert http.get("/metrics").text == "up 1\n"
        assert http.get("/version").status_code == 404
        backend.health = Health.UNAVAILABLE
        assert http.get("/health").status_code == 503
        backend.health = Health.HANG
        with pytest.raises(httpx.ReadTimeout):
            http.get("/health", timeout=0.2)
    assert backend.requests == []
    assert len(backend.probes) == 6


def test_tool_calls_and_reasoning(backend: FakeBackend, client: RawClient) -> None:
    text = json.dumps({"query": "x" * 50})
    backend.behave(tool_arguments=tuple(text), reasoning=3)
    payloads = client.exchange(CHAT, STREAM).stream.payloads
    deltas = [choice["delta"] for payload in payloads for choice in payload["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert "".join(call["function"]["arguments"] for call in calls) == text
    assert sum("reasoning_content" in delta for delta in deltas) == 3


def test_a_stopped_backend_refuses(backend: FakeBackend) -> None:
    backend.stop()
    with pytest.raises(ConnectionRefusedError):
        RawClient(backend.port)


@pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)
def test_an_error_event_takes_the_place_of_the_next_one(
    backend: FakeBackend, client: RawClient, route: Route
) -> None:
    backend.behave(error_after=2, n_tokens=10)
    answer = client.exchange(route.path, route.stream())
    assert answer.end is End.FRAMED
    payloads = answer.stream.payloads
    assert len(payloads) == 3
    assert answer.stream.errors == payloads[2:]
    assert backend.requests[0].complete
