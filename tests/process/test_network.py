"""A bad network, between the gateway and a backend and between a client and the gateway."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import Cut
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import Answer, End, RawClient
from tests.harness.routes import CHAT, STREAMING, Route
from tests.harness.tcp_proxy import Stop, TcpProxy, Way

QUIET: dict[str, Any] = {"interval": 600.0, "timeout": 5.0, "unhealthy_after": 1_000_000}
"""Probes that put nobody out: what is cut off here, probes are too."""
UPLOAD = 12 * 1024 * 1024

by_stop = pytest.mark.parametrize("stop", [Stop.FIN, Stop.RST])


class Behind(Protocol):
    def __call__(self, port: int) -> TcpProxy: ...


@pytest.fixture
def behind() -> Iterator[Behind]:
    with ExitStack() as stack:

        def start(port: int) -> TcpProxy:
            return stack.enter_context(TcpProxy(port))

        yield start


def idle_outcomes(gw: GatewayProcess) -> dict[str, float]:
    return gw.settles_idle().outcomes


# between the gateway and a backend


@pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)
def test_a_slow_network_changes_nothing(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind, route: Route
) -> None:
    backend = start_backend()
    proxy = behind(backend.port)
    gw = gateway([proxy], health=QUIET)
    slow = Way(delay=0.02, segment=97, gap=0.001)
    proxy.behave(up=slow, down=slow)
    with gw.client() as client:
        streamed = client.exchange(route.path, route.stream())
        whole = client.exchange(route.path, route.body(["hello"]))
    assert (streamed.status, streamed.end) == (200, End.FRAMED)
    assert (whole.status, whole.end) == (200, End.FRAMED)
    assert [streamed.body, whole.body] == [bytes(each.answer) for each in backend.requests]
    assert idle_outcomes(gw) == {"ok": 2}


def freeze_the_answer(
    gw: GatewayProcess, proxy: TcpProxy, after: int, body: dict[str, Any]
) -> Answer:
    proxy.behave(down=Way(stop_after=after, stop=Stop.FREEZE))
    with gw.client() as client:
        return client.exchange(CHAT.path, body)


def test_frozen_in_mid_stream_ends_by_the_idle_limit(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind
) -> None:
    backend = start_backend()
    backend.behave(n_tokens=50)
    proxy = behind(backend.port)
    gw = gateway([proxy], health=QUIET, timeouts={"idle": 0.5})
    # The network knows nothing of events: one is cut in two, and can be followed by nothing.
    inside = freeze_the_answer(gw, proxy, 1000, CHAT.stream())
    assert inside.end is End.BROKEN
    assert b"[DONE]" not in inside.body
    backend.next(silent_after=3)
    between = freeze_the_answer(gw, proxy, 1_000_000, CHAT.stream())
    assert between.end is End.FRAMED
    assert json.loads(between.stream.events[-1].data)["error"]["code"] == "idle_timeout"
    kinds = gw.metrics().by("prefixgate_upstream_errors_total", "kind")
    assert kinds == {"idle_timeout": 2}
    assert idle_outcomes(gw) == {"timeout": 2}


def test_frozen_inside_a_whole_answer_is_a_504(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind
) -> None:
    backend = start_backend()
    proxy = behind(backend.port)
    gw = gateway([proxy], health=QUIET, timeouts={"idle": 0.5})
    answer = freeze_the_answer(gw, proxy, 200, CHAT.body(["hello"]))
    assert (answer.status, answer.json["error"]["code"]) == (504, "idle_timeout")
    assert idle_outcomes(gw) == {"timeout": 1}


def test_frozen_before_the_answer_ends_by_the_first_byte_limit(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind
) -> None:
    backend = start_backend()
    proxy = behind(backend.port)
    gw = gateway([proxy], health=QUIET, timeouts={"first_byte": 0.5})
    answer = freeze_the_answer(gw, proxy, 0, CHAT.stream())
    assert (answer.status, answer.json["error"]["code"]) == (504, "first_byte_timeout")
    [request] = backend.wait_requests(1)
    backend.wait(lambda: request.complete)
    assert idle_outcomes(gw) == {"timeout": 1}


def test_an_upload_that_stalls_ends_by_the_first_byte_limit(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind
) -> None:
    backend = start_backend()
    proxy = behind(backend.port)
    gw = gateway([proxy], health=QUIET, timeouts={"first_byte": 0.5})
    proxy.behave(up=Way(stop_after=1 << 20, stop=Stop.FREEZE))
    assert gw.post(CHAT.path, CHAT.body(["x" * UPLOAD])).status_code == 504
    assert backend.requests == []
    assert idle_outcomes(gw) == {"timeout": 1}


@by_stop
def test_an_upload_that_is_cut_is_sent_to_another_backend_whole(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind, stop: Stop
) -> None:
    cut, other = start_backend(), start_backend()
    proxy = behind(cut.port)
    gw = gateway([proxy, other], health=QUIET, policy={"name": "round_robin"})
    proxy.behave(up=Way(stop_after=3 << 20, stop=stop))
    body = json.dumps(CHAT.body(["x" * UPLOAD])).encode()
    for count in (1, 2):  # one of them goes to the cut one first
        assert gw.post(CHAT.path, body).status_code == 200
        assert len(other.requests) == count
    digests = {hashlib.blake2b(request.body).digest() for request in other.requests}
    assert digests == {hashlib.blake2b(body).digest()}
    assert cut.requests == []
    assert gw.metrics().total("prefixgate_retries_total") >= 1
    assert idle_outcomes(gw) == {"ok": 2}


@by_stop
def test_an_upload_that_is_cut_everywhere_is_a_502(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind, stop: Stop
) -> None:
    proxy = behind(start_backend().port)
    gw = gateway([proxy], health=QUIET)
    proxy.behave(up=Way(stop_after=3 << 20, stop=stop))
    answer = gw.post(CHAT.path, CHAT.body(["x" * UPLOAD]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "reset")
    assert idle_outcomes(gw) == {"upstream_error": 1}


# between a client and the gateway


def test_a_client_on_a_slow_network_is_served(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind
) -> None:
    backend = start_backend()
    gw = gateway([backend])
    proxy = behind(gw.port)
    proxy.behave(up=Way(segment=1, gap=0.0005), down=Way(segment=13, gap=0.0005))
    with RawClient(proxy.port) as client:
        answer = client.exchange(CHAT.path, CHAT.stream())
    assert answer.body == bytes(backend.requests[0].answer)
    assert idle_outcomes(gw) == {"ok": 1}


def test_a_client_whose_network_freezes_in_the_body_is_let_go(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind
) -> None:
    backend = start_backend()
    gw = gateway([backend], server={"body_timeout": 0.5})
    proxy = behind(gw.port)
    proxy.behave(up=Way(stop_after=300, stop=Stop.FREEZE))
    with RawClient(proxy.port) as client:
        assert client.exchange(CHAT.path, CHAT.body(["x" * 1000])).status == 408
    assert backend.requests == []
    assert idle_outcomes(gw) == {"client_error": 1}


@pytest.mark.parametrize("stop", [Stop.FIN, Stop.RST, Stop.HALF])
@pytest.mark.parametrize("whole", [False, True])
def test_a_client_whose_network_goes_away_is_not_worked_for(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind, stop: Stop, whole: bool
) -> None:
    """Half-closed counts as gone: nobody can tell it from a client that will never read."""
    backend = start_backend()
    backend.behave(itl=0.02, n_tokens=100_000)
    gw = gateway([backend])
    proxy = behind(gw.port)
    body = json.dumps(CHAT.stream()).encode()
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" % CHAT.path.encode()
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    proxy.behave(up=Way(stop_after=len(request) - (0 if whole else 5), stop=stop))
    with RawClient(proxy.port) as client:
        client.send(request)
        assert gw.settles(lambda metrics: bool(metrics.outcomes)).outcomes == {"cancelled": 1}
    for each in backend.requests:
        backend.wait_closed(each)
    idle_outcomes(gw)


@pytest.mark.parametrize("cut", Cut)
def test_a_cut_on_the_way_back_is_a_client_that_left(
    start_backend: StartBackend, gateway: StartGateway, behind: Behind, cut: Cut
) -> None:
    backend = start_backend()
    backend.behave(itl=0.02, n_tokens=100_000)
    gw = gateway([backend])
    proxy = behind(gw.port)
    proxy.behave(down=Way(stop_after=1000, stop=Stop(cut.value)))
    with RawClient(proxy.port) as client:
        answer = client.exchange(CHAT.path, CHAT.stream())
    assert answer.end in (End.BROKEN, End.RESET)
    [request] = backend.requests
    backend.wait_closed(request)
    assert idle_outcomes(gw) == {"cancelled": 1}
