"""Group 7: errors, retries and breakers.

Rates and times of the cases are kept where the machine allows; where a case says "within 1 s",
three are allowed unless what is told apart lies closer.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import httpx
import pytest

from gateway.config import BreakerConfig
from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import Behaviour, Cut, Inside
from tests.harness.fake_backend import FakeBackend, Health
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import Answer, End, RawClient
from tests.harness.recorded import Recorded
from tests.harness.routes import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, STREAMING, Json, Route
from tests.harness.routes import text as made_up

SOON = 3.0
QUIET: Json = {"interval": 600.0}
"""Probes at the start only."""
TURNS: Json = {"name": "round_robin"}
ERROR_EVENT = b'data: {"error": {"message": "engine died", "type": "InternalServerError"}}\n\n'


def ask(gw: GatewayProcess, prompt: str = "hello") -> httpx.Response:
    return gw.post(CHAT.path, CHAT.body([prompt]))


def stream(gw: GatewayProcess, prompt: str = "hello", route: Route = CHAT) -> Answer:
    with gw.client() as client:
        return client.exchange(route.path, route.stream([prompt]))


def at_a_rate(gw: GatewayProcess, count: int, per_second: float) -> list[httpx.Response]:
    """Requests of prompts of their own, sent on time whatever becomes of those before."""
    answers: list[Future[httpx.Response]] = []
    with ThreadPoolExecutor(64) as pool:
        start = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, start + number / per_second - time.monotonic()))
            answers.append(pool.submit(ask, gw, f"number {number}"))
        return [answer.result() for answer in answers]


def entry(gw: GatewayProcess, backend: FakeBackend) -> Json:
    [found] = [each for each in gw.admin("GET", "/backends") if each["url"] == backend.url]
    return dict(found)


def breaker(gw: GatewayProcess, backend: FakeBackend) -> str:
    return str(entry(gw, backend)["breaker"]["state"])


def becomes(gw: GatewayProcess, backend: FakeBackend, state: str, timeout: float = 10.0) -> float:
    """Wait until a backend's breaker is in a state; when that was seen."""
    deadline = time.monotonic() + timeout
    while breaker(gw, backend) != state:
        assert time.monotonic() < deadline, entry(gw, backend)
        time.sleep(0.02)
    return time.monotonic()


def closed_everywhere(gw: GatewayProcess) -> bool:
    states = {each["breaker"]["state"] for each in gw.admin("GET", "/backends")}
    return states == {"closed"} and gw.metrics().total("prefixgate_backend_ejections_total") == 0


# E01


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 409, 413, 422])
def test_E01_clients_mistakes_do_not_open_breakers(
    start_backend: StartBackend, gateway: StartGateway, status: int
) -> None:
    backends = [start_backend(), start_backend()]
    body = json.dumps({"error": {"message": f"own {status}", "type": "x"}}).encode()

    def rule(request: Recorded) -> Behaviour | None:
        return Behaviour(status=status, body=body) if len(request.body) > 1000 else None

    for backend in backends:
        backend.rule = rule
    gw = gateway(backends, health=QUIET, breaker={"failures": 1})
    for number in range(50):
        answer = ask(gw, made_up(f"{number}", 1200))
        assert (answer.status_code, answer.content) == (status, body)
    assert sum(len(backend.requests) for backend in backends) == 50
    assert [ask(gw, f"{number}").status_code for number in range(10)] == [200] * 10
    assert closed_everywhere(gw)
    assert gw.metrics().outcomes == {"client_error": 50, "ok": 10}


# E03


@pytest.mark.parametrize(
    ("status", "says"),
    [(503, None), (429, "60"), (529, "date"), (503, "soon"), (429, "0")],
)
def test_E03_a_single_backend_serves_as_soon_as_it_can(
    start_backend: StartBackend, gateway: StartGateway, status: int, says: str | None
) -> None:
    backend = start_backend()
    gw = gateway([backend], health=QUIET)
    said = formatdate(time.time() + 60, usegmt=True) if says == "date" else says
    headers = () if said is None else (("Retry-After", said),)
    backend.behave(status=status, headers=headers)
    refused = at_a_rate(gw, 20, 40.0)
    assert {answer.status_code for answer in refused} == {status}
    assert {answer.headers["retry-after"] for answer in refused} == {said or "1"}
    backend.behave()
    # What was said may be far too long: who is alone is asked all the same.
    served = at_a_rate(gw, 20, 80.0)
    assert {answer.status_code for answer in served} == {200}
    assert closed_everywhere(gw)
    assert gw.metrics().outcomes == {"backpressure": 20, "ok": 20}


def test_E03_a_busy_backend_is_avoided_and_not_ejected(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    busy, free = start_backend(), start_backend()
    busy.behave(status=503)
    gw = gateway([busy, free], health=QUIET, policy=TURNS, backpressure={"avoid": 1.0})
    answers = at_a_rate(gw, 40, 20.0)
    assert {answer.status_code for answer in answers} == {200}
    # Once, and once more each time the mark has expired: a second apart, over two.
    assert 1 <= len(busy.requests) <= 4
    assert entry(gw, busy)["state"] == "healthy"
    assert closed_everywhere(gw)
    busy.behave()
    before = len(busy.requests)
    at_a_rate(gw, 40, 20.0)
    assert len(busy.requests) - before >= 5


@pytest.mark.parametrize("route", [CHAT, MESSAGES], ids=lambda route: route.name)
def test_E03_the_mark_can_be_asked(
    start_backend: StartBackend, gateway: StartGateway, route: Route
) -> None:
    busy, free = start_backend(), start_backend()
    gw = gateway([busy, free], health=QUIET, policy=TURNS)
    for backend in (busy, free):
        backend.behave(status=529, headers=(("Retry-After", "5"),))
    answer = gw.post(route.path, route.body(["hello"]))
    assert answer.status_code == 529
    assert answer.headers["retry-after"] == "5"
    assert 3.0 < entry(gw, busy)["busy_seconds"] <= 5.0
    metrics = gw.metrics()
    assert metrics.total("prefixgate_backend_busy") == 2
    assert metrics.by("prefixgate_upstream_errors_total", "kind") == {"busy": 2}
    assert metrics.total("prefixgate_backend_breaker_state", state="closed") == 2


# E04


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("html", [False, True])
def test_E04_status_and_body_reach_the_client(
    start_backend: StartBackend, gateway: StartGateway, streaming: bool, html: bool
) -> None:
    backend = start_backend()
    gw = gateway([backend], health=QUIET)
    for number, status in enumerate((400, 401, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504)):
        body = json.dumps({"error": {"message": f"own {status}"}, "detail": [1]}).encode()
        if html:
            body = b"<html><h1>%d Bad Gateway</h1></html>" % status
        kind = (("Content-Type", "text/html"),) if html else ()
        backend.behave(status=status, body=body, headers=kind)
        with gw.client() as client:
            sent = CHAT.stream() if streaming else CHAT.body(["hello"])
            answer = client.exchange(CHAT.path, sent)
        assert (answer.status, answer.body) == (status, body)
        assert len(backend.requests) == number + 1


def test_E04_with_others_to_try_the_clients_errors_are_still_final(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend() for _ in range(3)]
    gw = gateway(backends, health=QUIET)
    for status in (400, 401, 404, 409, 422, 501):
        for backend in backends:
            backend.reset()
            backend.behave(status=status)
        assert ask(gw).status_code == status
        assert sum(len(backend.requests) for backend in backends) == 1


# E06


@pytest.mark.parametrize("cut", list(Cut))
def test_E06_a_body_that_dies_half_way(
    start_backend: StartBackend, gateway: StartGateway, cut: Cut
) -> None:
    backends = [start_backend(), start_backend()]
    for backend in backends:
        backend.behave(body=b"x" * 1000, cut_after=300, cut=cut)
    gw = gateway(backends, health=QUIET)
    answer = ask(gw)
    assert answer.status_code == 502
    assert "upstream body incomplete" in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "incomplete"
    # The work was done, and its head had come: it is not done twice.
    assert sum(len(backend.requests) for backend in backends) == 1
    metrics = gw.metrics()
    assert metrics.by("prefixgate_upstream_errors_total", "kind") == {"incomplete": 1}
    assert metrics.outcomes == {"upstream_error": 1}


@pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)
@pytest.mark.parametrize("gzip", [False, True])
def test_E06_a_stream_that_dies_half_way(
    start_backend: StartBackend, gateway: StartGateway, route: Route, gzip: bool
) -> None:
    backend = start_backend()
    gw = gateway([backend], health=QUIET)
    backend.next(cut_after=3, gzip=gzip)
    answer = stream(gw, route=route)
    assert answer.status == 200
    assert len(answer.stream.errors) == 1
    assert not answer.stream.done
    assert answer.end is End.FRAMED
    backend.next(cut_after=3, cut_inside=Inside.EVENT)
    assert stream(gw, route=route).end in (End.BROKEN, End.RESET)


# E07


FAULTS: dict[str, dict[str, Any]] = {
    "rst": {"script": (Cut.RST,)},
    "fin": {"script": (Cut.FIN,)},
    "garbage": {"script": (b"banana\r\n\r\n",)},
    "head": {"script": (b"HTTP/1.1 200 OK\r\ncontent-", Cut.FIN)},
}
SHORT: Json = {"failures": 3, "open": 0.6, "max_open": 0.6}


def fleet(gateway: StartGateway, backends: Sequence[FakeBackend], probes: bool) -> GatewayProcess:
    return gateway(
        backends,
        entry={"models": ["m"]},
        health={"interval": 0.2, "probes": probes},
        breaker=SHORT,
        policy=TURNS,
    )


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("probes", [True, False], ids=["probes", "no probes"])
def test_E07_a_breaker_recovers_by_itself(
    start_backend: StartBackend, gateway: StartGateway, fault: str, count: int, probes: bool
) -> None:
    backends = [start_backend() for _ in range(count)]
    bad = backends[0]
    gw = fleet(gateway, backends, probes)
    bad.behave(**FAULTS[fault])
    for number in range(10):
        status = ask(gw, f"{number}").status_code
        assert status == 200 if count > 1 else status in (502, 503)
    assert breaker(gw, bad) == "open"
    asked = len(bad.requests)
    bad.behave()
    becomes(gw, bad, "half_open", timeout=SOON)
    assert len(bad.requests) == asked
    assert ask(gw, "trial").status_code == 200
    assert breaker(gw, bad) == "closed"
    assert len(bad.requests) == asked + 1
    assert [ask(gw, f"after {number}").status_code for number in range(4)] == [200] * 4


def test_E07_a_backend_that_answers_500_alone_is_not_shut_out(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = fleet(gateway, [backend], probes=False)
    backend.behave(status=500)
    assert [ask(gw).status_code for _ in range(10)] == [500] * 10
    backend.behave()
    assert ask(gw).status_code == 200


def test_E07_few_trials_pass(start_backend: StartBackend, gateway: StartGateway) -> None:
    bad, good = start_backend(), start_backend()
    gw = fleet(gateway, [bad, good], probes=False)
    held = hold(gw, bad)
    bad.behave(script=(Cut.RST,))
    for number in range(8):
        ask(gw, f"{number}")
    assert breaker(gw, bad) == "open"
    bad.behave(hang=True)
    becomes(gw, bad, "half_open")
    asked = len(bad.requests)
    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(ask, gw, f"trial {number}") for number in range(12)]
        bad.wait(lambda: len(bad.requests) > asked)
        time.sleep(0.2)
        assert len(bad.requests) == asked + 1
        # It hangs: each round, as long as the breaker was open, has one more trial at most.
        time.sleep(1.0)
        answers += [pool.submit(ask, gw, f"later {number}") for number in range(4)]
        time.sleep(0.3)
        assert len(bad.requests) <= asked + 3
        bad.stop()
        assert {answer.result().status_code for answer in answers} == {200}
    for client in held:
        client.close()


def hold(gw: GatewayProcess, bad: FakeBackend) -> list[RawClient]:
    """Streams that go on at `bad` all the while: they are no trials."""
    bad.rule = lambda request: (
        Behaviour(n_tokens=100_000, itl=0.05) if request.json.get("stream") else None
    )
    clients = [gw.client() for _ in range(2)]
    for client in clients:
        client.request(CHAT.path, CHAT.stream())
    bad.wait_requests(1)
    return clients


def test_E07_a_cancelled_trial_neither_closes_nor_blocks(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = fleet(gateway, [backend], probes=False)
    backend.behave(script=(Cut.RST,))
    for _ in range(4):
        ask(gw)
    becomes(gw, backend, "half_open")
    backend.behave(hang=True)
    asked = len(backend.requests)
    client = gw.client()
    client.request(CHAT.path, CHAT.stream())
    backend.wait_requests(asked + 1)
    client.close()
    gw.settles_idle(SOON)
    assert breaker(gw, backend) == "half_open"
    backend.behave()
    assert ask(gw).status_code == 200
    assert breaker(gw, backend) == "closed"


@pytest.mark.parametrize("status", [400, 429, 500])
def test_E07_no_closing_without_proof(
    start_backend: StartBackend, gateway: StartGateway, status: int
) -> None:
    backend = start_backend()
    gw = fleet(gateway, [backend], probes=False)
    backend.behave(script=(Cut.RST,))
    for _ in range(4):
        ask(gw)
    becomes(gw, backend, "half_open")
    backend.behave(status=status)
    assert ask(gw).status_code == status
    assert breaker(gw, backend) == "half_open"
    backend.behave()
    assert ask(gw).status_code == 200
    assert breaker(gw, backend) == "closed"


def test_E07_a_killed_backend_is_back_within_a_probe_period(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Whatever time its breaker has left."""
    killed, other = start_backend(), start_backend()
    gw = gateway(
        [killed, other],
        health={"interval": 1.0},
        breaker={"failures": 1, "open": 300.0, "max_open": 300.0},
        policy=TURNS,
    )
    killed.stop()
    answers = at_a_rate(gw, 30, 30.0)
    assert {answer.status_code for answer in answers} == {200}
    assert entry(gw, killed)["state"] == "ejected"
    back = start_backend(port=killed.port)
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 2, timeout=SOON)
    for number in range(4):
        assert ask(gw, f"back {number}").status_code == 200
    assert len(back.requests) >= 1
    assert breaker(gw, back) == "closed"


# E09


def test_E09_overload_marks_expire(start_backend: StartBackend, gateway: StartGateway) -> None:
    backend = start_backend()
    backend.pages["/metrics"] = b"vllm:num_requests_running 100\nvllm:num_requests_waiting 28\n"
    gw = gateway([backend], health=QUIET)
    taken: list[Recorded] = []

    def rule(request: Recorded) -> Behaviour | None:
        taken.append(request)
        if len(taken) > 28:
            return Behaviour(status=529, headers=(("Retry-After", "30"),))
        return Behaviour(ttft=0.3)

    backend.rule = rule
    with ThreadPoolExecutor(128) as pool:
        answers = [pool.submit(ask, gw, f"{number}") for number in range(128)]
        statuses = Counter(answer.result().status_code for answer in answers)
    assert statuses[200] == 28
    assert statuses[529] == 100
    backend.rule = None
    later = []
    for number in range(3):
        later.append(ask(gw, f"later {number}").status_code)
        time.sleep(1.0)
    assert later == [200] * 3
    assert closed_everywhere(gw)


# E10


@pytest.mark.parametrize("limit", ["first_byte", "total"])
def test_E10_a_hung_backend_hurts_its_own_requests_only(
    start_backend: StartBackend, gateway: StartGateway, limit: str
) -> None:
    hung, good = start_backend(), start_backend()
    gw = gateway([hung, good], health=QUIET, timeouts={limit: 1.5}, policy=TURNS)
    hung.behave(hang=True)

    def timed(number: int) -> tuple[int, float]:
        started = time.monotonic()
        return ask(gw, f"{number}").status_code, time.monotonic() - started

    with ThreadPoolExecutor(64) as pool:
        results = list(pool.map(timed, range(200)))
    served = [took for status, took in results if status == 200]
    lost = [took for status, took in results if status == 504]
    assert len(served) + len(lost) == 200
    assert len(lost) == len(hung.requests)
    assert max(lost) < 1.5 + SOON
    assert sorted(served)[len(served) // 2] < 1.0
    assert breaker(gw, hung) == "open"
    # Those under way when the first ones ended, and one after each that ended before the breaker
    # had seen enough.
    assert len(lost) <= 64 + BreakerConfig().failures
    kinds = gw.metrics().by("prefixgate_upstream_errors_total", "kind")
    assert kinds == {f"{limit}_timeout": len(lost)}


def test_E10_what_waits_at_a_backend_that_probes_find_hung_goes_elsewhere(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    hung, good = start_backend(), start_backend()
    gw = gateway(
        [hung, good],
        health={"interval": 0.3, "timeout": 0.3},
        policy=TURNS,
    )
    hung.behave(hang=True)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, gw, f"{number}") for number in range(8)]
        hung.wait_requests(4)
        hung.health = Health.HANG
        assert {answer.result().status_code for answer in answers} == {200}
    assert entry(gw, hung)["state"] == "ejected"
    assert len(good.requests) == 8
    assert gw.metrics().by("prefixgate_upstream_errors_total", "kind") == {"hung": 4}
    gw.settles_idle()


# vLLM sends a stream's head at once: that is no sign of work, and no beginning of an answer.


@pytest.mark.parametrize("limit", ["first_byte", "total"])
def test_E10_a_streams_head_is_not_its_first_byte(
    start_backend: StartBackend, gateway: StartGateway, limit: str
) -> None:
    hung, good = start_backend(), start_backend()
    gw = gateway([hung, good], health=QUIET, timeouts={limit: 1.0, "idle": 30.0}, policy=TURNS)
    hung.behave(early_head=True, ttft=60.0)
    statuses = set()
    for _ in range(2):
        with gw.client() as client:
            statuses.add(client.exchange(CHAT.path, CHAT.stream()).status)
    assert statuses == {200, 504}
    metrics = gw.metrics()
    assert metrics.by("prefixgate_upstream_errors_total", "kind") == {f"{limit}_timeout": 1}
    blamed = metrics.by("prefixgate_backend_breaker_failures", "backend")
    assert blamed == {gw.backend_id(hung.url): 1}


def test_E10_silence_before_the_first_byte_is_not_silence_between_bytes(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], timeouts={"idle": 0.5, "first_byte": 30.0})
    backend.behave(early_head=True, ttft=2.0)
    with gw.client() as client:
        answer = client.exchange(CHAT.path, CHAT.stream())
    assert answer.stream.done
    assert not answer.stream.errors


def test_E10_streams_with_a_head_leave_a_hung_backend_too(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    hung, good = start_backend(), start_backend()
    gw = gateway([hung, good], health={"interval": 0.3, "timeout": 0.3}, policy=TURNS)
    hung.behave(early_head=True, ttft=60.0)
    with gw.client() as one, gw.client() as two:
        for client in (one, two):
            client.request(CHAT.path, CHAT.stream())
        hung.wait_requests(1)
        hung.health = Health.HANG
        assert all(client.answer().stream.done for client in (one, two))
    assert gw.metrics().by("prefixgate_upstream_errors_total", "kind") == {"hung": 1}


def test_E10_a_backend_at_work_is_left_to_it(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Probes hang, but a stream there goes on: what has no byte yet may well be served."""
    slow, other = start_backend(), start_backend()
    gw = gateway([slow, other], health={"interval": 0.3, "timeout": 0.3}, policy=TURNS)
    slow.rule = lambda request: Behaviour(
        n_tokens=200 if request.json.get("stream") else 1,
        itl=0.05 if request.json.get("stream") else 0.0,
        ttft=0.0 if request.json.get("stream") else 4.0,
    )
    streams = [gw.client() for _ in range(2)]
    for client in streams:
        client.request(CHAT.path, CHAT.stream())
        client.events(1)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, gw, f"{number}") for number in range(2)]
        slow.wait_requests(2)
        slow.health = Health.HANG
        becomes_out(gw, slow)
        assert [answer.result().status_code for answer in answers] == [200] * 2
    assert "hung" not in gw.metrics().by("prefixgate_upstream_errors_total", "kind")
    for client in streams:
        client.close()


def becomes_out(gw: GatewayProcess, backend: FakeBackend) -> None:
    deadline = time.monotonic() + 10.0
    while entry(gw, backend)["state"] != "ejected":
        assert time.monotonic() < deadline
        time.sleep(0.05)


# E12


@pytest.mark.parametrize("size", [100, 12_000_000])
def test_E12_retries_move_on(start_backend: StartBackend, gateway: StartGateway, size: int) -> None:
    refusing, failing, fine = (start_backend() for _ in range(3))
    gw = gateway([refusing, failing, fine], health=QUIET, policy=TURNS, retries={"max_retries": 2})
    refusing.stop()
    failing.behave(status=500)
    count = 30 if size < 1000 else 3
    sent: list[str] = []
    for number in range(count):
        body = json.dumps(CHAT.body([f"{number} " + "x" * size])).encode()
        sent.append(hashlib.sha256(body).hexdigest())
        assert gw.post(CHAT.path, body).status_code == 200
    assert [hashlib.sha256(request.body).hexdigest() for request in fine.requests] == sent
    tried = Counter(hashlib.sha256(request.body).hexdigest() for request in failing.requests)
    assert set(tried.values()) <= {1}
    assert set(tried) <= set(sent)


def test_E12_when_all_fail_there_is_no_storm(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend() for _ in range(4)]
    gw = gateway(backends, health=QUIET, breaker={"failures": 10_000})
    for backend in backends:
        backend.behave(status=500)
    count = 300
    for number in range(count):
        assert ask(gw, f"{number}").status_code == 500
    retries = sum(len(backend.requests) for backend in backends) - count
    assert retries == gw.metrics().total("prefixgate_retries_total")
    assert 0.2 * count <= retries <= 0.2 * count + 25


def test_E12_a_retry_waits_for_its_turn_where_it_must(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """As it would have on arrival: the others may be full, but nothing was refused."""
    backends = [start_backend(), start_backend()]
    gw = gateway(backends, health=QUIET, policy=TURNS, scheduling={"decode": {"max_requests": 1}})
    for backend in backends:
        backend.behave(ttft=1.0)
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, gw, f"{number}") for number in range(2)]
        gw.settles(lambda metrics: metrics.total("prefixgate_in_flight") == 2)
        backends[0].stop()
        assert [answer.result().status_code for answer in answers] == [200, 200]


def test_E12_a_refusal_waits_for_a_backend_that_is_well(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend(), start_backend()]
    gw = gateway(backends, health=QUIET, policy=TURNS, scheduling={"decode": {"max_requests": 1}})
    for backend in backends:
        backend.behave(ttft=0.5)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, gw, "first")
        gw.settles(lambda _: any(backend.requests for backend in backends))
        [idle] = [backend for backend in backends if not backend.requests]
        idle.behave(status=429)
        assert ask(gw, "second").status_code == 200
        assert first.result().status_code == 200
    assert gw.metrics().total("prefixgate_retries_total") == 1


ROUTES = [CHAT, COMPLETIONS, EMBEDDINGS]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_E12_what_died_before_its_first_byte_is_served(
    start_backend: StartBackend, gateway: StartGateway, route: Route
) -> None:
    """Many at once, as when an engine is killed: streams whose head came early are among them."""
    killed, *others = (start_backend() for _ in range(4))
    gw = gateway([killed, *others], health={"interval": 1.0}, policy=TURNS)
    for number in range(200):  # the traffic that has earned the retries
        assert gw.post(route.path, route.body([f"{number}"])).status_code == 200
    killed.behave(ttft=30.0, early_head=True)
    for backend in others:
        backend.behave(ttft=0.3, early_head=True)

    def one(number: int) -> tuple[int, bool]:
        body = route.stream([f"{number}"]) if route.streams else route.body([f"{number}"])
        with gw.client() as client:
            answer = client.exchange(route.path, body)
        return answer.status, not route.streams or answer.stream.done

    before = len(killed.requests)
    with ThreadPoolExecutor(80) as pool:
        answers = [pool.submit(one, number) for number in range(80)]
        killed.wait(lambda: len(killed.requests) >= before + 20)
        killed.stop()
        assert {answer.result() for answer in answers} == {(200, True)}
    gw.settles_idle()


def test_E12_a_stream_that_begins_with_an_error_is_tried_elsewhere(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    bad, good = start_backend(), start_backend()
    gw = gateway([bad, good], health=QUIET, policy=TURNS)
    head = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    data = ERROR_EVENT + b"data: [DONE]\n\n"
    bad.behave(script=(head, 0.05, b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)))
    for number in range(6):
        answer = stream(gw, f"{number}")
        assert answer.status == 200
        assert answer.stream.errors == []
        assert answer.stream.done
    count = len(bad.requests)
    assert gw.metrics().by("prefixgate_upstream_errors_total", "kind") == {"error_event": count}
    assert entry(gw, bad)["breaker"]["failures"] == count
    good.behave(script=(head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)))
    answer = stream(gw)
    assert answer.body == data, "with nobody left it reaches the client"
    assert entry(gw, good)["breaker"]["failures"] == 0


def test_E12_what_may_change_an_engine_is_sent_once(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend(), start_backend()]
    gw = gateway(backends, health=QUIET, policy=TURNS)
    for fault in ({"script": (Cut.RST,)}, {"status": 500}, {"status": 503}):
        for backend in backends:
            backend.reset()
            backend.behave(**fault)
        answer = gw.post("/v1/things", {"name": "x"})
        assert answer.status_code in (500, 502, 503)
        # The reset of a kept connection is no answer: it is sent once more to the same one.
        assert sum(bool(backend.requests) for backend in backends) == 1


# E13


@pytest.mark.parametrize("status", [429, 500])
def test_E13_a_cooldown_keeps_a_backend_out(
    start_backend: StartBackend, gateway: StartGateway, status: int
) -> None:
    """Of each of two processes; a second of the case's is a tenth here."""
    bad, good = start_backend(), start_backend()
    bad.behave(status=status)
    gateways = [
        gateway(
            [bad, good],
            health={"interval": 0.2},
            breaker={"failures": 1, "open": 1.5, "max_open": 1.5},
            backpressure={"avoid": 1.5},
            policy=TURNS,
        )
        for _ in range(2)
    ]

    def times() -> list[list[float]]:
        of_each: dict[bytes | None, list[float]] = {}
        for request in bad.requests:
            of_each.setdefault(request.header(b"via"), []).append(request.arrived)
        return list(of_each.values())

    deadline = time.monotonic() + 30.0
    while [len(of_one) >= 3 for of_one in times()] != [True, True]:
        assert time.monotonic() < deadline, times()
        for gw in gateways:
            assert {answer.status_code for answer in at_a_rate(gw, 2, 10.0)} == {200}
    for of_one in times():
        assert all(later - earlier > 1.4 for earlier, later in pairwise(of_one))


# E15


@pytest.fixture(scope="module")
def shared(module_gateway: StartGateway) -> Iterator[tuple[GatewayProcess, FakeBackend]]:
    with FakeBackend("m") as backend:
        yield module_gateway([backend], server={"max_body": 4096}), backend


@pytest.mark.parametrize("route", [CHAT, MESSAGES, EMBEDDINGS], ids=lambda route: route.name)
@pytest.mark.parametrize(
    ("model", "status"),
    [
        *((name, 404) for name in ("nobody", "M", " m ", "m ", "x" * 3000)),
        *((name, 400) for name in ("", None, 7, ["m"], {"m": 1}, True, "m\n")),
    ],
)
def test_E15_unknown_models(
    shared: tuple[GatewayProcess, FakeBackend], route: Route, model: object, status: int
) -> None:
    gw, backend = shared
    before = len(backend.requests)
    answer = gw.post(route.path, {**route.body(["hello"]), "model": model})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["message"]
    if route is not MESSAGES:
        assert error["param"] == "model"
        assert (error["code"] == "model_not_found") == (status == 404)
    assert len(backend.requests) == before


def test_E15_a_model_that_is_missing(shared: tuple[GatewayProcess, FakeBackend]) -> None:
    gw, backend = shared
    before = len(backend.requests)
    answer = gw.post(CHAT.path, {"messages": []})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "missing_required_parameter"
    assert len(backend.requests) == before


# E16


JSON = "application/json"
WRONG: dict[str, tuple[str, bytes, str, int]] = {
    "malformed": ("POST", b"{", JSON, 400),
    "not an object": ("POST", b"[1]", JSON, 400),
    "empty": ("POST", b"", JSON, 400),
    "content type": ("POST", b"a=b", "text/plain", 415),
    "method": ("GET", b"", JSON, 405),
    "another method": ("DELETE", b"", JSON, 405),
    "too large": ("POST", b"x" * 5000, JSON, 413),
}


@pytest.mark.parametrize("route", [CHAT, MESSAGES], ids=lambda route: route.name)
@pytest.mark.parametrize("wrong", WRONG)
def test_E16_errors_are_json_in_the_callers_dialect(
    shared: tuple[GatewayProcess, FakeBackend], route: Route, wrong: str
) -> None:
    gw, backend = shared
    before = len(backend.requests)
    method, body, kind, status = WRONG[wrong]
    answer = gw.http.request(method, route.path, content=body, headers={"content-type": kind})
    assert len(backend.requests) == before
    in_dialect(answer, route, status)
    if status == 405:
        assert answer.headers["allow"] == "POST"


def in_dialect(answer: httpx.Response, route: Route, status: int) -> None:
    assert answer.status_code == status
    assert answer.headers["content-type"] == JSON
    tree = answer.json()
    if route is MESSAGES:
        assert tree["type"] == "error"
        assert set(tree["error"]) == {"type", "message"}
    else:
        assert set(tree["error"]) == {"message", "type", "param", "code"}
    assert tree["error"]["message"]


@pytest.mark.parametrize("route", [CHAT, MESSAGES], ids=lambda route: route.name)
def test_E16_no_backend(start_backend: StartBackend, gateway: StartGateway, route: Route) -> None:
    backend = start_backend()
    gw = gateway([backend], health=QUIET, breaker={"failures": 1})
    backend.stop()
    in_dialect(gw.post(route.path, route.body(["hello"])), route, 502)
    answer = gw.post(route.path, route.body(["hello"]))
    in_dialect(answer, route, 503)
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize("route", [CHAT, MESSAGES], ids=lambda route: route.name)
def test_E16_limits(start_backend: StartBackend, gateway: StartGateway, route: Route) -> None:
    backend = start_backend()
    gw = gateway([backend], health=QUIET, timeouts={"first_byte": 0.5})
    backend.next(hang=True)
    in_dialect(gw.post(route.path, route.body(["hello"])), route, 504)
