"""Group 11: metrics that clients cannot blow up, gauges that come back, times taken at the right
moment."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import Cut, Inside
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess, Metrics
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT, STREAMING, Route, text

by_route = pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)


@pytest.fixture(scope="module")
def gw(shared_backend: FakeBackend, module_gateway: StartGateway) -> GatewayProcess:
    return module_gateway([shared_backend], health={"unhealthy_after": 1000})


# X01

MEGABYTE = 1 << 20


def flood(gw: GatewayProcess, draw: random.Random, count: int) -> None:
    """Requests of which everything that a client chooses is new each time."""
    client = gw.client()
    for number in range(count):
        word = f"{draw.getrandbits(64):x}"
        kind = number % 10
        body: Any = {**CHAT.body(["hello"]), "max_tokens": draw.randrange(1, 1 << 30)}
        path, method = CHAT.path, "POST"
        if kind < 4:
            body["model"] = word
        elif kind == 4:
            body["model"] = word * 640  # 10 kB
        elif kind == 5:
            body["model"] = {"a": 1} if number % 20 == 5 else [word]
        elif kind == 6:
            path = f"/{word}/{word}"
        elif kind == 7:
            method = "FOO" if number % 20 == 7 else word[:9].translate(LETTERS).upper()
        headers = [
            ("x-team", word),
            ("authorization", f"Bearer {word}"),
            ("x-session-id", word),
            ("x-request-id", word),
            (f"x-{word}", word),
        ]
        client.request(path, body, method=method, headers=headers)
        client.answer()
        if kind == 7:  # a method that the parser does not know ends the connection
            client.close()
            client = gw.client()
    client.close()


LETTERS = str.maketrans("0123456789", "ghijklmnop")


@pytest.mark.parametrize("policy", ["prefix_affinity", "session"])
@pytest.mark.parametrize("parser", ["httptools", "h11"])
def test_X01_clients_do_not_choose_how_many_series_there_are(
    start_backend: StartBackend, gateway: StartGateway, parser: str, policy: str
) -> None:
    backend = start_backend()
    gw = gateway(
        [backend],
        models={"nick": ["m"]},
        server={"parser": parser},
        policy={"name": policy},
        # So small that the first part of the flood fills what has a bound.
        scheduling={"tenants": {"header": "x-team", "max_tracked": 100}},
        index={"max_blocks": 1000},
    )
    draw = random.Random(1)
    for model in ("m", "nick"):
        assert gw.post(CHAT.path, {**CHAT.body(["hello"]), "model": model}).status_code == 200
    flood(gw, draw, 300)
    backend.requests.clear()
    series, memory = gw.metrics().series, gw.rss()
    size = len(gw.http.get("/metrics").content)
    for _ in range(10):
        flood(gw, draw, 125 if parser == "h11" else 500)
        backend.requests.clear()
    after = gw.settles_idle()
    assert after.series == series
    assert len(gw.http.get("/metrics").content) - size < 4096  # more digits
    assert gw.rss() - memory < 16 * MEGABYTE
    models = after.by("prefixgate_requests_total", "model")
    assert models.keys() == {"m", "nick", "other", "none"}
    before = after.total("prefixgate_requests_total", model="nick")
    assert gw.post(CHAT.path, {**CHAT.body(["hello"]), "model": "nick"}).status_code == 200
    later = gw.settles(lambda m: m.total("prefixgate_requests_total", model="nick") > before)
    assert later.total("prefixgate_requests_total", model="nick") == before + 1


# X03


def leaves(gw: GatewayProcess, data: bytes = b"", *, after: float = 0.05) -> None:
    """A client that goes away after a moment, having sent `data` or a streamed request."""
    client = gw.client()
    if data:
        client.send(data)
    else:
        client.request(CHAT.path, CHAT.stream())
    time.sleep(after)
    client.close()


def test_X03_all_gauges_come_back(start_backend: StartBackend, gateway: StartGateway) -> None:
    backend = start_backend()
    gw = gateway(
        [backend],
        scheduling={"decode": {"max_requests": 1, "max_wait": 0.3}},
        retries={"max_retries": 0},
        timeouts={"idle": 0.5, "first_byte": 0.5},
        health={"unhealthy_after": 1000},
    )
    ask, streamed = CHAT.body(["hello"]), CHAT.stream()
    for how in (
        {},
        {"status": 400},
        {"status": 429},
        {"status": 500},
        {"hang": True},
        {"script": (Cut.RST,)},
        {"script": (b"HTTP/1.1 nonsense\r\n\r\n",)},
        {"cut_after": 10},
    ):
        backend.next(**how)
        gw.post(CHAT.path, ask)
    for how in (
        {},
        {"cut_after": 2},
        {"cut_after": 2, "cut_inside": Inside.EVENT},
        {"silent_after": 2},
        {"cut_after": 0, "cut": Cut.RST},
    ):
        backend.next(**how)
        with gw.client() as client:
            client.exchange(CHAT.path, streamed)
    assert gw.post(CHAT.path, b"{").status_code == 400
    assert gw.post(CHAT.path, {**ask, "model": "nobody's"}).status_code == 404
    # leaving: with half a head, half a body, before the answer, in its middle
    leaves(gw, b"POST /v1/chat/completions HTTP/1.1\r\nhos")
    leaves(gw, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
    backend.next(ttft=30.0)
    leaves(gw)
    backend.next(itl=0.01, n_tokens=1000)
    leaves(gw, after=0.3)
    # in the queue: one leaves, one expires
    backend.next(itl=0.05, n_tokens=1000)
    with gw.client() as holder:
        holder.request(CHAT.path, streamed)
        holder.events(1)
        leaves(gw)
        assert gw.post(CHAT.path, ask).status_code == 503
    idle = gw.settles_idle()
    outcomes = idle.outcomes
    assert outcomes.keys() == {
        *("ok", "client_error", "backpressure", "upstream_error"),
        *("timeout", "cancelled", "rejected"),
    }
    for gauge in (
        "prefixgate_in_flight",
        "prefixgate_queue_depth",
        "prefixgate_queue_oldest_wait_seconds",
        "prefixgate_queue_held",
        "prefixgate_queue_unplaced",
        "prefixgate_queue_tenants",
        "prefixgate_pending_prefill_seconds",
        "prefixgate_gate_closed",
        "prefixgate_index_bookings",
    ):
        assert idle.total(gauge) == 0, gauge
    assert gw.admin("GET", "/requests") == []
    [entry] = gw.admin("GET", "/backends")
    load = entry["load"]
    for each in ("in_flight", "decoding", "pending_tokens", "pending_seconds", "context_tokens"):
        assert load[each] == 0, each


# X06


def test_X06_the_answer_says_which_backend_it_is_from(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend(), start_backend()]
    gw = gateway(backends)
    ids = {gw.backend_id(backend.url): backend for backend in backends}
    for number in range(6):
        route = STREAMING[number % len(STREAMING)]
        turns = [text(f"X06 {number}", 1000)]
        shown = set()
        for body in (route.body(turns), route.stream(turns), route.body(turns)):
            for backend in backends:
                backend.reset()
            answer = gw.post(route.path, body)
            shown.add(answer.headers["x-prefixgate-backend"])
            [served] = [backend for backend in backends if backend.requests]
            assert ids[answer.headers["x-prefixgate-backend"]] is served
        assert len(shown) == 1  # its prefix stays where it is
    for id, backend in ids.items():
        assert str(backend.port) not in id
        assert "127" not in id or len(id) == 12
        assert id.isalnum()


@pytest.mark.parametrize("streamed", [True, False])
def test_X06_after_retries_it_is_the_last_one(
    start_backend: StartBackend, gateway: StartGateway, streamed: bool
) -> None:
    backends = [start_backend(), start_backend()]
    gw = gateway(backends, policy={"name": "round_robin"})
    backends[0].behave(status=503)
    for number in range(4):
        body = CHAT.stream([str(number)]) if streamed else CHAT.body([str(number)])
        answer = gw.post(CHAT.path, body)
        assert answer.status_code == 200
        assert answer.headers["x-prefixgate-backend"] == gw.backend_id(backends[1].url)
    assert backends[0].requests
    # Nothing in any header tells an address.
    shown = " ".join(f"{name}: {value}" for name, value in answer.headers.items())
    assert not any(str(backend.port) in shown for backend in backends)


# X07


def state_of(gw: GatewayProcess, backend: FakeBackend) -> Any:
    return gw.admin("GET", f"/backends/{gw.backend_id(backend.url)}")


def test_X07_why_a_backend_gets_nothing_can_be_asked(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    bad, good = start_backend(), start_backend()
    gw = gateway(
        [bad, good],
        policy={"name": "round_robin"},
        health={"unhealthy_after": 2, "interval": 60.0},
    )
    fresh = state_of(gw, bad)
    assert (fresh["state"], fresh["cause"], fresh["breaker"]["failures"]) == ("healthy", "", 0)
    bad.stop()
    gw.settles(
        lambda _: (
            gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
            and state_of(gw, bad)["state"] == "ejected"
        )
    )
    out = state_of(gw, bad)
    assert out["cause"]
    assert str(bad.port) not in gw.post(CHAT.path, CHAT.body(["x"])).text
    assert out["breaker"]["failures"] + out["failed_probes"] >= 1
    time.sleep(0.2)
    assert state_of(gw, bad)["state_seconds"] >= out["state_seconds"] + 0.15
    # What is said agrees with what is done.
    good.requests.clear()
    for number in range(6):
        assert gw.post(CHAT.path, CHAT.body([str(number)])).status_code == 200
    assert len(good.requests) == 6
    metrics = gw.metrics()
    id = gw.backend_id(bad.url)
    assert metrics.total("prefixgate_backend_state", backend=id, state="ejected") == 1
    assert metrics.total("prefixgate_backend_up", backend=id) == 0


# X09


def first_tokens(metrics: Metrics) -> tuple[int, float]:
    """How many times to first token there are, and their sum in seconds."""
    return (
        int(metrics.total("prefixgate_ttft_seconds_count")),
        metrics.total("prefixgate_ttft_seconds_sum"),
    )


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def events_of(backend: FakeBackend, gw: GatewayProcess, route: Route) -> list[bytes]:
    """A stream of this route, as a list of events."""
    with gw.client() as client:
        client.exchange(route.path, route.stream())
    body = bytes(backend.requests[-1].answer)
    return [event + b"\n\n" for event in body.split(b"\n\n") if event]


CONTENT = {
    "chat": b't0 "',
    "completions": b't0 "',
    "responses": b"output_text.delta",
    "messages": b"content_block_delta",
}


@by_route
def test_X09_the_first_token_is_the_first_content(
    gw: GatewayProcess, backend: FakeBackend, route: Route
) -> None:
    """What comes before it, at once: comments, pings, heads of messages, role-only deltas."""
    events = events_of(backend, gw, route)
    first = next(at for at, event in enumerate(events) if CONTENT[route.name] in event)
    early = b": ping\n\n" + b"".join(events[:first])
    count, seconds = first_tokens(gw.settles_idle())
    backend.next(script=(HEAD + early, 0.6, b"".join(events[first:]), Cut.FIN))
    with gw.client() as client:
        assert client.exchange(route.path, route.stream()).status == 200
    gw.settles(lambda metrics: first_tokens(metrics)[0] == count + 1)
    took = first_tokens(gw.metrics())[1] - seconds
    assert 0.6 <= took < 3.0


def test_X09_what_has_no_first_token_has_no_time_to_it(
    gw: GatewayProcess, backend: FakeBackend
) -> None:
    events = events_of(backend, gw, CHAT)
    before = gw.settles_idle()
    role = HEAD + b": ping\n\n" + events[0]
    error = b'data: {"error":{"message":"no","type":"x"}}\n\n'
    for how in (
        {"status": 500},
        {"status": 400},
        {"script": (b"HTTP/1.1 nonsense\r\n\r\n",)},
        {"script": (role, 0.05, Cut.FIN)},
        {"script": (role, 0.05, error, Cut.FIN)},
        {"script": (HEAD, Cut.RST)},
    ):
        backend.next(**how)
        with gw.client() as client:
            client.exchange(CHAT.path, CHAT.stream())
    backend.next(script=(role, 30.0))
    client = gw.client()
    client.request(CHAT.path, CHAT.stream())
    client.events(1)
    client.close()
    gw.outcomes_since(before, 7)
    assert first_tokens(gw.metrics()) == first_tokens(before)


def test_X09_time_per_token_counts_what_comes_after_the_first(
    gw: GatewayProcess, backend: FakeBackend
) -> None:
    backend.next(ttft=0.5, itl=0.05, n_tokens=11)
    before = gw.settles_idle()
    with gw.client() as client:
        client.exchange(CHAT.path, CHAT.stream())
    gw.outcomes_since(before)
    after = gw.metrics()
    name = "prefixgate_tpot_seconds"
    assert after.total(f"{name}_count") - before.total(f"{name}_count") == 1
    # 0.05 s, and a little for the two events after the last token; the 0.5 s are not in it.
    assert 0.04 <= after.total(f"{name}_sum") - before.total(f"{name}_sum") < 0.1


def test_X09_the_log_says_the_same(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    backend = start_backend()
    log = tmp_path / "access.jsonl"
    gw = gateway([backend], log={"access": str(log)})
    backend.next(ttft=0.3)
    client = RawClient(gw.port)
    client.exchange(CHAT.path, CHAT.stream())
    backend.next(status=500)
    client.exchange(CHAT.path, CHAT.stream())
    gw.stop()
    good, bad = map(json.loads, log.read_text().splitlines())
    assert good["ttft"] >= 0.3
    assert (bad["ttft"], bad["tpot"]) == (None, None)


def test_the_access_log_has_both_names_of_a_request(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    log, backend = tmp_path / "access.jsonl", start_backend()
    gw = gateway([backend], log={"access": str(log)})
    for named in ({"x-request-id": "mine"}, {}):
        assert gw.post(CHAT.path, CHAT.body(["hello"]), **named).status_code == 200
    gw.settles_idle()
    gw.stop()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["client_id"] for line in lines] == ["mine", None]
    sent = [request.header(b"x-request-id") for request in backend.requests]
    assert [line["id"].encode() for line in lines] == sent
