"""Group 4: streaming fidelity. What the backend sends is what the client gets, byte for byte."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Callable
from threading import Event
from typing import Any

import httpx
import pytest

from gateway.fleet.upstream import TICK
from tests.conftest import StartBackend, StartGateway
from tests.harness import sse
from tests.harness.behaviour import Cut, Framing, Inside, UsageStyle
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess, Metrics
from tests.harness.raw import Answer, End
from tests.harness.routes import CHAT, COMPLETIONS, MESSAGES, RESPONSES, STREAMING, Route, text

TEXTS = ("你好", " 🌍", " é")
by_route = pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)
EVENT_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


# Broken answers are this module's subject: they must not eject its only backend.
SETTINGS: dict[str, Any] = {"breaker": {"failures": 1000}, "timeouts": {"idle": 1.0}}


@pytest.fixture(scope="module")
def direct(shared_backend: FakeBackend, module_gateway: StartGateway) -> GatewayProcess:
    """Answers are written to the client's transport."""
    return module_gateway([shared_backend], **SETTINGS)


@pytest.fixture(scope="module")
def plain_asgi(shared_backend: FakeBackend, module_gateway: StartGateway) -> GatewayProcess:
    """Answers go through ASGI messages."""
    return module_gateway([shared_backend], server={"parser": "h11"}, **SETTINGS)


@pytest.fixture(params=["direct", "plain_asgi"])
def gw(request: pytest.FixtureRequest) -> GatewayProcess:
    process: GatewayProcess = request.getfixturevalue(request.param)
    return process


def stream(gw: GatewayProcess, route: Route, **options: object) -> Answer:
    with gw.client() as client:
        return client.exchange(route.path, route.stream(), **options)


def output_tokens(metrics: Metrics) -> float:
    return metrics.total("prefixgate_output_tokens_total")


# S01


@pytest.mark.parametrize(
    ("route", "segment"),
    # /v1/responses has long events, and each segment costs a millisecond
    [*[(CHAT, size) for size in (1, 2, 3, 5)], (COMPLETIONS, 1), (MESSAGES, 1), (RESPONSES, 3)],
    ids=lambda value: value.name if isinstance(value, Route) else value,
)
def test_S01_characters_split_between_segments(
    direct: GatewayProcess, backend: FakeBackend, route: Route, segment: int
) -> None:
    backend.behave(segment=segment, texts=TEXTS)
    before = direct.metrics()
    answer = stream(direct, route)
    assert answer.body == backend.requests[0].answer
    assert "\ufffd" not in answer.body.decode("utf-8")
    assert answer.end is End.FRAMED
    assert direct.outcomes_since(before) == {"ok": 1}
    assert output_tokens(direct.metrics()) - output_tokens(before) == 3


def test_S01_whole_answers_too(gw: GatewayProcess, backend: FakeBackend) -> None:
    backend.behave(segment=1, texts=TEXTS)
    with gw.client() as client:
        answer = client.exchange(CHAT.path, CHAT.body(["hello"]))
    assert answer.body == backend.requests[0].answer
    assert answer.json["choices"][0]["message"]["content"] == "你好 🌍 é"


# S03


def crlf(event: bytes) -> bytes:
    return event.replace(b"\n", b"\r\n")


def cr(event: bytes) -> bytes:
    return event.replace(b"\n", b"\r")


def no_space(event: bytes) -> bytes:
    return event.replace(b"data: ", b"data:").replace(b"event: ", b"event:")


def many_data_lines(event: bytes) -> bytes:
    lines = []
    for line in event.rstrip(b"\n").split(b"\n"):
        if line.startswith(b"data: {"):
            shown = json.dumps(json.loads(line[6:]), indent=1, ensure_ascii=False)
            lines += [f"data: {part}".encode() for part in shown.split("\n")]
        else:
            lines.append(line)
    return b"\n".join(lines) + b"\n\n"


def comments(event: bytes) -> bytes:
    return b": before\n" + event + b":\n\n: between events {}\n\n"


def more_fields(event: bytes) -> bytes:
    name = b"" if event.startswith(b"event:") else b"event: message\n"
    return b"id: 7\nretry: 10\n" + name + b"unknown: x\n" + event


def no_last_blank_line(event: bytes) -> bytes:
    ends = (b"[DONE]", b'"message_stop"', b'"response.completed"')
    return event[:-1] if any(end in event for end in ends) else event


def no_last_line_end(event: bytes) -> bytes:
    cut = no_last_blank_line(event)
    return event if cut == event else cut[:-1]


STYLES = (
    crlf,
    cr,
    no_space,
    many_data_lines,
    comments,
    more_fields,
    no_last_blank_line,
    no_last_line_end,
)


@by_route
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
def test_S03_grammar_variants(
    direct: GatewayProcess,
    backend: FakeBackend,
    style: Callable[[bytes], bytes],
    split: bool,
    route: Route,
) -> None:
    segment = (1 if route is CHAT else 7) if split else None
    backend.behave(style=style, segment=segment, n_tokens=2)
    before = direct.metrics()
    answer = stream(direct, route)
    assert answer.body == backend.requests[0].answer
    assert answer.end is End.FRAMED
    assert direct.outcomes_since(before) == {"ok": 1}
    assert output_tokens(direct.metrics()) - output_tokens(before) == 2


@pytest.mark.parametrize("style", STYLES, ids=lambda style: style.__name__)
def test_S03_events_are_not_held_back(
    gw: GatewayProcess, backend: FakeBackend, style: Callable[[bytes], bytes]
) -> None:
    backend.behave(style=style, silent_after=3)
    with gw.client() as client:
        client.request(CHAT.path, CHAT.stream())
        [request] = backend.wait_requests(1)
        backend.wait(lambda: request.sent == 3)
        # the backend says nothing more: all that it said must come without any further push
        early = client.answer(lambda answer: len(answer.body) == len(request.answer))
    assert early.body == request.answer


def test_S03_a_huge_event_is_not_gathered(gw: GatewayProcess, backend: FakeBackend) -> None:
    """An event of 32 MB without a line end goes through in pieces and leaves no memory behind."""
    piece = b"x" * (1 << 20)
    chunk = b"%x\r\n%b\r\n" % (len(piece), piece)
    backend.next(script=(EVENT_HEAD, b"6\r\ndata: \r\n", *[chunk] * 32, b"2\r\n\n\n\r\n0\r\n\r\n"))
    before = gw.rss()
    answer = gw.http.post(CHAT.path, json=CHAT.stream())
    assert answer.content == b"data: " + piece * 32 + b"\n\n"
    assert gw.rss() - before < 16 << 20


# S04


@by_route
@pytest.mark.parametrize("framing", [Framing.BOTH, Framing.CLOSE, Framing.HTTP10])
def test_S04_no_content_length_on_a_stream(
    gw: GatewayProcess, backend: FakeBackend, framing: Framing, route: Route
) -> None:
    backend.behave(framing=framing, itl=0.005)
    before = gw.metrics()
    answer = stream(gw, route)
    assert answer.body == backend.requests[0].answer
    assert answer.end is End.FRAMED
    assert answer.all("transfer-encoding") == ["chunked"]
    assert answer.all("content-length") == []
    assert gw.outcomes_since(before) == {"ok": 1}


@pytest.mark.parametrize("framing", [Framing.BOTH, Framing.CLOSE, Framing.HTTP10, Framing.CHUNKED])
@pytest.mark.parametrize("size", [100, 600_000])
def test_S04_whole_answers_too(
    gw: GatewayProcess, backend: FakeBackend, framing: Framing, size: int
) -> None:
    body = json.dumps({"text": text("S04", size)}).encode()
    backend.behave(framing=framing, pieces=3, body=body)
    with gw.client() as client:
        answer = client.exchange(CHAT.path, CHAT.body(["hello"]))
        assert answer.body == body
        assert answer.end is End.FRAMED
        assert bool(answer.all("transfer-encoding")) != bool(answer.all("content-length"))
        # and the connection stands where the next answer begins
        assert client.exchange(CHAT.path, CHAT.body(["hello"])).body == body


# S06


@by_route
@pytest.mark.parametrize("inside", [None, *Inside])
@pytest.mark.parametrize("cut", list(Cut))
@pytest.mark.parametrize("framing", [Framing.CHUNKED, Framing.CLOSE, Framing.HTTP10])
def test_S06_a_cut_is_not_a_clean_end(
    gw: GatewayProcess,
    backend: FakeBackend,
    framing: Framing,
    cut: Cut,
    inside: Inside | None,
    route: Route,
) -> None:
    # itl: a reset throws away what has not been read yet, so each event is given time to be
    backend.behave(cut_after=5, cut_inside=inside, cut=cut, framing=framing, itl=0.01, n_tokens=50)
    before = gw.metrics()
    answer = stream(gw, route)
    [request] = backend.requests
    sent = sse.read(bytes(request.answer)).events
    got = answer.stream
    assert len(sent) == 5
    assert got.events[:5] == sent
    assert not got.done
    if answer.end is End.FRAMED:
        # a proper end, so the stream itself must say what happened, in one event after the five
        assert len(got.events) == 6
        assert len(got.errors) == 1
        assert got.unfinished == []
    else:
        assert answer.end in (End.BROKEN, End.RESET)
        assert len(got.events) == 5
    assert gw.outcomes_since(before) == {"upstream_error": 1}
    failures = "prefixgate_upstream_errors_total"
    assert gw.metrics().total(failures) - before.total(failures) == 1
    gw.settles_idle()


def test_S06_the_error_event_is_in_the_callers_dialect(
    gw: GatewayProcess, backend: FakeBackend
) -> None:
    backend.behave(cut_after=3, itl=0.01)
    chat = stream(gw, CHAT).stream.errors[0]
    assert set(chat["error"]) >= {"message", "type", "code"}
    message = stream(gw, MESSAGES).stream
    assert message.events[-1].name == "error"
    assert message.errors[0]["type"] == "error"
    assert set(message.errors[0]["error"]) >= {"type", "message"}


def test_S06_cuts_of_gzip_streams(gw: GatewayProcess, backend: FakeBackend) -> None:
    """Plain bytes cannot follow half a gzip member: only a broken body is honest there."""
    backend.behave(gzip=True, cut_after=5, itl=0.01, n_tokens=50)
    compressed = stream(gw, CHAT, headers=[("accept-encoding", "gzip")])
    assert compressed.header("content-encoding") == "gzip"
    assert compressed.end in (End.BROKEN, End.RESET)
    plain = stream(gw, CHAT)
    assert plain.end in (End.BROKEN, End.RESET) or len(plain.stream.errors) == 1
    assert not plain.stream.done


# S07

ERRORS = {
    CHAT: b'data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n',
    MESSAGES: b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error",'
    b'"message":"busy"}}\n\n',
}


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@pytest.mark.parametrize("route", list(ERRORS), ids=lambda route: route.name)
def test_S07_after_an_error_event_the_stream_ends(
    gw: GatewayProcess, backend: FakeBackend, route: Route
) -> None:
    error = ERRORS[route]
    backend.behave(script=(EVENT_HEAD, chunked(error), 30.0))
    before = gw.metrics()
    began = time.monotonic()
    answer = stream(gw, route)
    # the idle limit is 1 s; 5 s leave room for a busy machine and are far below the 30 s
    assert time.monotonic() - began < 5.0
    assert answer.body.startswith(error)
    assert len(answer.stream.errors) >= 1
    assert set(gw.outcomes_since(before)) <= {"upstream_error", "timeout"}
    gw.settles_idle()
    backend.wait_closed(backend.requests[0], timeout=3.0)


@pytest.mark.parametrize("route", list(ERRORS), ids=lambda route: route.name)
def test_S07_it_ends_when_the_backend_ends(
    gw: GatewayProcess, backend: FakeBackend, route: Route
) -> None:
    error = ERRORS[route]
    backend.behave(script=(EVENT_HEAD, chunked(error), b"0\r\n\r\n"))
    before = gw.metrics()
    answer = stream(gw, route)
    assert answer.body == error
    assert answer.end is End.FRAMED
    assert gw.outcomes_since(before) == {"upstream_error": 1}


# S09


PING = 0.2
"""Seconds; the case's own second would only make the tests slower."""


@by_route
@pytest.mark.parametrize("early_head", [True, False])
def test_S09_no_bytes_of_our_own_during_a_silence(
    gw: GatewayProcess, backend: FakeBackend, route: Route, early_head: bool
) -> None:
    # `pinging` would send two; the idle limit is 1 s
    backend.behave(ttft=2.5 * PING, early_head=early_head)
    answer = stream(gw, route)
    assert answer.body == backend.requests[0].answer
    assert answer.stream.comments == []


@pytest.fixture(scope="module")
def pinging(shared_backend: FakeBackend, module_gateway: StartGateway) -> GatewayProcess:
    return module_gateway([shared_backend], server={"stream_ping": PING}, **SETTINGS)


def commented(gw: GatewayProcess, route: Route, count: int, then: Event) -> Answer:
    """Of a stream whose backend says nothing before so many comments have come."""
    with gw.client() as client:
        client.request(route.path, route.stream())
        client.answer(lambda answer: len(answer.stream.comments) >= count)
        then.set()
        return client.answer()


@by_route
@pytest.mark.parametrize("early_head", [True, False])
def test_S09_comments_during_a_silence(
    pinging: GatewayProcess, backend: FakeBackend, route: Route, early_head: bool
) -> None:
    spoken = Event()
    backend.behave(until=spoken, early_head=early_head)
    before = pinging.metrics()
    began = time.monotonic()
    answer = commented(pinging, route, 3, spoken)
    assert 3 <= len(answer.stream.comments) <= 1 + (time.monotonic() - began) / TICK
    assert answer.stream.events == sse.read(bytes(backend.requests[0].answer)).events
    assert answer.end is End.FRAMED
    assert pinging.outcomes_since(before) == {"ok": 1}


@by_route
@pytest.mark.parametrize("fault", ["400", "500", *Cut])
def test_S09_an_error_after_a_comment_is_an_event(
    pinging: GatewayProcess, backend: FakeBackend, route: Route, fault: str
) -> None:
    failing = Event()
    if fault.isdigit():
        backend.behave(until=failing, status=int(fault))
    else:
        backend.behave(until=failing, script=(Cut(fault),))
    answer = commented(pinging, route, 1, failing)
    assert answer.status == 200
    assert len(answer.stream.errors) == 1
    assert not answer.stream.done
    pinging.settles_idle()


@pytest.mark.parametrize("status", [200, 500])
def test_S09_no_comments_in_other_answers(
    pinging: GatewayProcess, backend: FakeBackend, status: int
) -> None:
    backend.behave(ttft=2.5 * PING, status=status)
    answer = pinging.post(CHAT.path, CHAT.body(["hello"]))
    assert answer.status_code == status
    assert answer.text.startswith("{")
    assert answer.json()


@pytest.mark.parametrize("packed", [False, True])
def test_S09_a_whole_answer_after_a_comment_is_an_event(
    pinging: GatewayProcess, backend: FakeBackend, packed: bool
) -> None:
    body = b'{"object":"chat.completion","choices":[]}'
    headers = (("content-encoding", "gzip"),) if packed else ()
    sent = gzip.compress(body) if packed else body
    backend.behave(ttft=2.5 * PING, body=sent, headers=headers)
    prompt = text(f"S09 {packed}", 20_000)
    with pinging.client() as client:
        stream = client.exchange(
            CHAT.path, CHAT.stream([prompt]), headers=[("accept-encoding", "gzip")]
        ).stream
    assert [event.data.encode() for event in stream.events] == [body]
    # The backend has taken the prompt, whatever its answer looks like.
    assert pinging.explain(CHAT.path, CHAT.body([prompt])).matched_tokens > 0


@pytest.mark.parametrize("served", [True, False])
def test_S09_comments_while_a_request_waits_for_its_turn(
    start_backend: StartBackend, gateway: StartGateway, served: bool
) -> None:
    backend = start_backend()
    one = {"max_requests": 1, "max_wait": 1.5}
    gw = gateway(
        [backend], server={"stream_ping": PING}, scheduling={"decode": one, "prefill": one}
    )
    backend.behave(silent_after=1)
    with gw.client() as holder, gw.client() as waits:
        holder.request(CHAT.path, CHAT.stream())
        holder.events(1)
        waits.request(CHAT.path, CHAT.stream(["waits"]))
        waits.answer(lambda answer: len(answer.stream.comments) >= 2)
        backend.behave()
        if served:
            holder.close()
        answer = waits.answer()
    assert answer.status == 200
    assert answer.header("content-type") == "text/event-stream; charset=utf-8"
    assert answer.end is End.FRAMED
    if served:
        assert answer.stream.events == sse.read(bytes(backend.requests[1].answer)).events
    else:
        [error] = answer.stream.errors
        assert error["error"]["code"] == "expired"
    gw.settles_idle()


@pytest.mark.parametrize("served", [True, False])
@pytest.mark.parametrize("silence", [0.05, 3 * PING])
def test_S09_comments_while_it_waits_for_another_backend(
    start_backend: StartBackend, gateway: StartGateway, served: bool, silence: float
) -> None:
    failing, full = start_backend("m"), start_backend("m", "n")
    one = {"max_requests": 1, "max_wait": 2.0}
    gw = gateway(
        [failing, full],
        server={"stream_ping": PING},
        scheduling={"decode": one, "prefill": one},
        health={"interval": 60.0},
    )
    failing.behave(script=(silence, Cut.RST))
    full.behave(silent_after=1)
    with gw.client() as holder, gw.client() as waits:
        holder.request(CHAT.path, {**CHAT.stream(), "model": "n"})
        holder.events(1)
        waits.request(CHAT.path, CHAT.stream(["waits"]))
        waits.answer(lambda answer: len(answer.stream.comments) >= 4)
        full.behave()
        if served:
            holder.close()
        answer = waits.answer()
    assert answer.end is End.FRAMED
    if served:
        assert answer.stream.events == sse.read(bytes(full.requests[1].answer)).events
    else:
        [error] = answer.stream.errors
        assert error["error"]["code"] == "reset"
    gw.settles_idle()


def test_S09_leaving_between_comments(pinging: GatewayProcess, backend: FakeBackend) -> None:
    backend.behave(ttft=30.0)
    with pinging.client() as client:
        client.request(CHAT.path, CHAT.stream())
        client.answer(lambda answer: len(answer.stream.comments) >= 2)
    # a case's 1 s, with room for a busy machine
    backend.wait_closed(backend.wait_requests(1)[0], timeout=3.0)
    pinging.settles_idle()


# S10


@by_route
def test_S10_headers_against_buffering(
    gw: GatewayProcess, backend: FakeBackend, route: Route
) -> None:
    answer = stream(gw, route)
    [cache] = answer.all("cache-control")
    assert {"no-cache", "no-transform"} <= {part.strip() for part in cache.split(",")}
    assert answer.all("x-accel-buffering") == ["no"]


def test_S10_the_backends_own_values_stay(gw: GatewayProcess, backend: FakeBackend) -> None:
    backend.behave(headers=(("Cache-Control", "private, max-age=1"), ("X-Accel-Buffering", "yes")))
    answer = stream(gw, CHAT)
    assert answer.all("cache-control") == ["private, max-age=1"]
    assert answer.all("x-accel-buffering") == ["yes"]


def test_S10_whole_answers_have_none(gw: GatewayProcess, backend: FakeBackend) -> None:
    with gw.client() as client:
        answer = client.exchange(CHAT.path, CHAT.body(["hello"]))
    assert answer.all("cache-control") == answer.all("x-accel-buffering") == []


# S12


@by_route
@pytest.mark.parametrize("segment", [None, 7])
@pytest.mark.parametrize("accepted", ["gzip", "gzip, deflate, br", None, "identity"])
def test_S12_compressed_streams(
    gw: GatewayProcess,
    backend: FakeBackend,
    accepted: str | None,
    segment: int | None,
    route: Route,
) -> None:
    backend.behave(gzip=True, segment=segment, texts=TEXTS)
    before = gw.metrics()
    headers = [("accept-encoding", accepted)] if accepted else []
    answer = stream(gw, route, headers=headers)
    body = answer.body
    if answer.header("content-encoding") == "gzip":
        assert accepted is not None
        assert "gzip" in accepted
        body = zlib.decompress(body, wbits=31)
    assert body == zlib.decompress(bytes(backend.requests[0].answer), wbits=31)
    assert answer.end is End.FRAMED
    assert gw.outcomes_since(before) == {"ok": 1}
    assert output_tokens(gw.metrics()) - output_tokens(before) == 3


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
def test_S12_progressively(gw: GatewayProcess, backend: FakeBackend, accepted: str) -> None:
    backend.behave(gzip=True, silent_after=4)
    with (
        httpx.Client(base_url=gw.url, trust_env=False, headers={"accept-encoding": accepted}) as c,
        c.stream("POST", CHAT.path, json=CHAT.stream()) as answer,
    ):
        got = b""
        for part in answer.iter_bytes():
            got += part
            if len(sse.read(got).events) == 4:
                break
    # reached while the backend says nothing more and its stream has no end
    assert sse.read(got).text == "t0 t1 t2 "


@pytest.mark.parametrize("usage", list(UsageStyle))
@pytest.mark.parametrize("gzip", [False, True])
def test_S12_usage_is_counted_once(
    gw: GatewayProcess, backend: FakeBackend, usage: UsageStyle, gzip: bool
) -> None:
    backend.behave(gzip=gzip, usage=usage, n_tokens=7)
    before = gw.metrics()
    stream(gw, CHAT)
    assert gw.outcomes_since(before) == {"ok": 1}
    assert output_tokens(gw.metrics()) - output_tokens(before) == 7


# S13


def owner_and_other(
    gw: GatewayProcess, backends: list[FakeBackend], body: object
) -> tuple[FakeBackend, FakeBackend]:
    """The backend that the prompt is routed to, once it has been there, and the other one."""
    assert gw.post(CHAT.path, body).status_code == 200
    [owner] = [backend for backend in backends if backend.requests]
    [other] = [backend for backend in backends if not backend.requests]
    owner.reset()
    return owner, other


@pytest.fixture
def pair(
    start_backend: StartBackend, gateway: StartGateway
) -> tuple[GatewayProcess, list[FakeBackend]]:
    backends = [start_backend(), start_backend()]
    return gateway(backends), backends


@pytest.mark.parametrize("inside", [None, Inside.EVENT])
def test_S13_once_bytes_are_out_never_retry(
    pair: tuple[GatewayProcess, list[FakeBackend]], inside: Inside | None
) -> None:
    gw, backends = pair
    turns = [text("S13", 8000)]
    owner, other = owner_and_other(gw, backends, CHAT.body(turns))
    owner.behave(cut_after=1, cut_inside=inside, itl=0.01)
    with gw.client() as client:
        answer = client.exchange(CHAT.path, CHAT.stream(turns))
    got = answer.stream
    assert len(owner.requests) == 1
    assert other.requests == []
    assert got.events[0].data in bytes(owner.requests[0].answer).decode()
    assert len(got.errors) == 1 or answer.end in (End.BROKEN, End.RESET)
    assert len(got.events) == 1 + len(got.errors)


@pytest.mark.parametrize("fault", ["refused", "fin", "rst"])
@pytest.mark.parametrize("streaming", [True, False])
def test_S13_before_the_first_byte_another_backend_serves(
    pair: tuple[GatewayProcess, list[FakeBackend]], fault: str, streaming: bool
) -> None:
    gw, backends = pair
    turns = [text("S13", 8000)]
    owner, other = owner_and_other(gw, backends, CHAT.body(turns))
    if fault == "refused":
        owner.stop()
    else:
        owner.behave(script=(Cut(fault),))
    with gw.client() as client:
        answer = client.exchange(CHAT.path, CHAT.stream(turns) if streaming else CHAT.body(turns))
    assert answer.status == 200
    assert len(other.requests) == 1
    assert answer.body == other.requests[0].answer
    assert answer.end is End.FRAMED
