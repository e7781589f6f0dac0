"""What each option does, seen from outside: one check for each."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.behaviour import Framing
from tests.harness.fake_backend import FakeBackend, Health
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import End, RawClient
from tests.harness.recorded import Recorded
from tests.harness.routes import CHAT, COMPLETIONS, RESPONSES, Json, text
from tests.process.full_listener import FullListener

API_KEY = "pg-a-key-that-nobody-can-guess"
ELSEWHERE = "127.0.0.2"


@dataclass
class Site:
    """A gateway with one option changed, in front of one backend that serves the model `m`."""

    gw: GatewayProcess
    backend: FakeBackend
    directory: Path

    def short(self, headers: dict[str, str] | None = None) -> RawClient:
        """A request of the decode class, sent."""
        return self._sent(CHAT.stream(), headers)

    def long(self) -> RawClient:
        """A request of the prefill class, sent; no two of them share a prefix."""
        return self._sent(CHAT.stream([text(f"{time.monotonic_ns()}", 12_000)]))

    def huge(self) -> RawClient:
        """The same, with so much prefill that the gate stays closed while a test lasts."""
        return self._sent(CHAT.stream([text(f"{time.monotonic_ns()}", 400_000)]))

    def _sent(self, body: Json, headers: dict[str, str] | None = None) -> RawClient:
        client = self.gw.client()
        client.request(CHAT.path, body, headers=list((headers or {}).items()))
        return client

    def add_second(self) -> None:
        """A further backend, served by the same fake one."""
        self.gw.admin("POST", "/backends", {"url": self.backend.url + "/second"})
        self.gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 2)

    def explain(self, body: Json, **headers: str) -> Any:
        asked = {"path": CHAT.path, "body": body, "headers": headers}
        return self.gw.admin("POST", "/explain", asked)

    def waits(self, count: int) -> None:
        self.gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == count)

    def settled(self, condition: Callable[[Json], bool], timeout: float = 5.0) -> list[Json]:
        """The backends in the admin API, once the first of them fulfils a condition.

        Raises:
            AssertionError: it did not in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            entries: list[Json] = self.gw.admin("GET", "/backends")
            if condition(entries[0]):
                return entries
            assert time.monotonic() < deadline, entries[0]
            time.sleep(0.02)


Check = Callable[[Site], None]


# server


def answers_elsewhere(site: Site) -> None:
    url = f"http://{ELSEWHERE}:{site.gw.port}/live"
    assert httpx.get(url, trust_env=False).status_code == 200


def closes_idle_connections(site: Site) -> None:
    with site.gw.client() as client:
        client.exchange("/live", method="GET")
        answered = time.monotonic()
        assert client.closed_by_peer()
        # Not at once either: a fraction of a second is a time too.
        assert time.monotonic() - answered > 0.5


def refuses_large_bodies(site: Site) -> None:
    assert site.gw.post(CHAT.path, CHAT.body(["x" * 5000])).status_code == 413


def believes_the_proxy(site: Site) -> None:
    site.gw.post(CHAT.path, CHAT.body(["hello"]), x_forwarded_for="192.0.2.1")
    [request] = site.backend.requests
    assert request.header(b"x-forwarded-for") == b"192.0.2.1, 127.0.0.1"


def denies_a_path(site: Site) -> None:
    assert site.gw.post("/v1/denied", CHAT.body(["hello"])).status_code == 403
    assert site.gw.post("/sleep", CHAT.body(["hello"])).status_code == 200


def passes_transfers(site: Site) -> None:
    answer = site.gw.post(CHAT.path, CHAT.body(["hello"]) | {"bootstrap_host": "10.0.0.1"})
    assert answer.status_code == 200


def shows_the_backend_its_key(site: Site) -> None:
    site.gw.post(CHAT.path, CHAT.body(["hello"]), authorization="Bearer the-clients")
    [request] = site.backend.requests
    assert request.header(b"authorization") == b"Bearer its-own-key"


def refuses_slow_bodies(site: Site) -> None:
    with site.gw.client() as client:
        client.send(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n")
        assert client.answer().status == 408


def ends_streams_that_take_too_long(site: Site) -> None:
    site.backend.behave(itl=0.05, n_tokens=10_000)
    client = site.short()
    client.events(1)
    # The harness waits far less than the default allows.
    site.gw.stop()
    answer = client.answer()
    assert answer.end is End.FRAMED
    assert answer.stream.errors[0]["error"]["code"] == "shutting_down"


def serves_for_a_while(site: Site) -> None:
    os.kill(site.gw.pid, signal.SIGTERM)
    answer = site.gw.http.get("/ready")
    assert (answer.status_code, answer.json()["status"]) == (503, "shutting down")
    assert site.gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200


def loads_what_changes(site: Site) -> None:
    path = site.gw.config_path
    path.write_text(path.read_text() + "log: {chains: true}\n")
    site.gw.settles(lambda _: site.gw.admin("GET", "/config")["log"]["chains"])


def refuses_a_second_connection(site: Site) -> None:
    with site.gw.client() as first:
        first.request("/live", method="GET")
        # The harness keeps one open itself.
        with site.gw.client() as client:
            assert client.answer().status == 503


def refuses_heads(status: int, *, target: str = "/live", headers: int = 0, size: int = 1) -> Check:
    def check(site: Site) -> None:
        fields = [(f"x-{number}", "y" * size) for number in range(headers)]
        with site.gw.client() as client:
            assert client.exchange(target, method="GET", headers=fields).status == status

    return check


def refuses_slow_heads(site: Site) -> None:
    with site.gw.client() as client:
        client.send(b"GET /live HT")
        assert client.answer().status == 408


def refuses_a_second_large_body(site: Site) -> None:
    body = CHAT.body(["x" * 3000])
    site.backend.behave(hang=True)
    with site.gw.client() as first, site.gw.client() as second:
        first.request(CHAT.path, body)
        site.backend.wait_requests(1)
        answer = second.exchange(CHAT.path, body)
        assert (answer.status, answer.json["error"]["code"]) == (503, "bodies_full")


def gives_up_readers_that_stall(site: Site) -> None:
    site.backend.behave(itl=0.001, texts=("x" * 60_000,) * 2000)
    with site.gw.client() as client:
        client.request(CHAT.path, CHAT.stream())
        [request] = site.backend.wait_requests(1)
        site.backend.wait_closed(request)


def takes_any_method(site: Site) -> None:
    """httptools knows those that are registered."""
    with site.gw.client() as client:
        client.send(b"BREW /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.answer().status == 405


def has_no_added_headers(site: Site) -> None:
    answer = site.gw.post(CHAT.path, CHAT.body(["hello"]))
    assert answer.status_code == 200
    assert "x-prefixgate-backend" not in answer.headers


def comments_into_silence(site: Site) -> None:
    site.backend.next(early_head=True, ttft=30.0)
    with site.gw.client() as client:
        client.request(CHAT.path, CHAT.stream())
        answer = client.answer(lambda answer: len(answer.stream.comments) >= 2)
    assert answer.stream.events == []


# backends


def probes_as_told(site: Site) -> None:
    [entry] = site.gw.admin("GET", "/backends")
    assert entry["kind"] == "ollama"
    paths = {probe.path for probe in site.backend.probes}
    assert "/api/version" in paths
    assert "/server_info" not in paths  # nothing was left to be found out


def leaves_whole_requests_to_others(site: Site) -> None:
    site.add_second()
    for number in range(4):
        body = CHAT.body([text(f"role {number}", 500)])
        assert site.gw.post(CHAT.path, body).status_code == 200
    assert {request.path for request in site.backend.requests} == {"/second" + CHAT.path}


def serves_what_it_is_said_to(site: Site) -> None:
    listed = site.gw.http.get("/v1/models").json()["data"]
    assert [entry["id"] for entry in listed] == ["renamed"]
    assert site.gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 404


def holds_no_more_than_its_capacity(site: Site) -> None:
    for number in range(5):
        body = {"model": "m", "prompt": text(f"capacity {number}", 6000)}
        assert site.gw.post(COMPLETIONS.path, body).status_code == 200
    assert 0 < site.gw.metrics().total("prefixgate_index_tokens") <= 3000


# discovery


def list_backends(site: Site, *paths: str) -> set[str]:
    """In the file that is watched. Returns the paths of all that there are once it is taken in."""
    listed = [{"url": site.backend.url + path} for path in paths]
    (site.directory / "listed.yaml").write_text(json.dumps({"backends": listed}))
    count = len(paths)
    site.gw.settles(lambda metrics: metrics.total("prefixgate_discovery_entries") == count)
    urls = {entry["url"] for entry in site.gw.admin("GET", "/backends")}
    return {url.removeprefix(site.backend.url) for url in urls}


def lists_from_a_file(site: Site) -> None:
    assert list_backends(site, "/a") == {"", "/a"}
    assert list_backends(site, "/a", "/b") == {"", "/a", "/b"}


def forgets_at_once(site: Site) -> None:
    assert list_backends(site, "/a") == {"", "/a"}
    assert list_backends(site) == {""}


def asks(site: Site) -> None:
    """Nobody answers, which is said."""
    site.gw.settles(lambda metrics: metrics.total("prefixgate_discovery_failures_total") > 0)
    [source] = site.gw.admin("GET", "/discovery")
    assert source["cause"]


# models


def goes_by_another_name(site: Site) -> None:
    assert site.gw.post(CHAT.path, {**CHAT.body(["hello"]), "model": "small"}).status_code == 200
    assert site.backend.requests[0].json["model"] == "m"


# policy


def rotates(site: Site) -> None:
    site.add_second()
    answers = [site.gw.post(CHAT.path, CHAT.body([text("same", 3000)])) for _ in range(2)]
    assert {answer.headers["x-prefixgate-decision"] for answer in answers} == {"rotation"}
    assert len({answer.headers["x-prefixgate-backend"] for answer in answers}) == 2


def cost_terms(site: Site) -> dict[str, float]:
    """Of a request's cost, while a long prompt waits to be prefilled and a stream decodes."""
    site.backend.behave(ttft=30.0)
    waiting = site.long()
    site.backend.wait_requests(1)
    site.backend.behave(itl=0.1, n_tokens=1000)
    decoding = site.short()
    decoding.events(2)
    [candidate] = site.explain(CHAT.body([text("terms", 60_000)]))["candidates"]
    waiting.close()
    decoding.close()
    terms: dict[str, float] = candidate["terms"]
    return terms


def has_no_price(site: Site) -> None:
    assert cost_terms(site)["price"] == 0


def prices_streams(site: Site) -> None:
    terms = cost_terms(site)
    assert terms["price"] > 50 * terms["prefill"]


def prices_spoilt_streams(site: Site) -> None:
    assert cost_terms(site)["streams"] > 20


def ignores_decode(site: Site) -> None:
    assert cost_terms(site)["decode"] == 0


# scheduling


def is_prefill_work(site: Site) -> None:
    assert site.explain(CHAT.body([text("class", 200)]))["work_class"] == "prefill"


def sends_everything_on(site: Site) -> None:
    """So much prefill is pending that the next one would be held."""
    site.backend.behave(ttft=30.0)
    running = [site.huge(), site.short()]
    site.backend.wait_requests(2)
    for client in running:
        client.close()


def stalls_streams(site: Site) -> None:
    """Much prefill comes beside a stream that would miss its pace by it."""
    site.backend.behave(itl=0.05, n_tokens=1000)
    clients = [site.short()]
    clients[0].events(8)
    clients.append(site.huge())
    site.backend.wait_requests(2, timeout=5.0)
    for client in clients:
        client.close()


def is_due_in(seconds: float, prompt: str) -> Check:
    def check(site: Site) -> None:
        due = site.explain(CHAT.body([prompt]))["deadline"]
        assert due == pytest.approx(seconds, rel=0.01)

    return check


def refuses_what_would_be_late(site: Site) -> None:
    backend = site.backend
    backend.next(ttft=1.0)
    # Two have waited for a second, so that it is known how long that takes.
    clients = [site.huge()]
    backend.wait_requests(1)
    clients += [site.short(), site.short()]
    site.waits(2)
    for client in clients:
        client.answer()
    backend.behave(ttft=30.0)
    clients.append(site.huge())
    backend.wait_requests(4)
    clients.append(site.short())
    site.waits(1)
    clients.append(site.short(due(100)))
    answer = clients[-1].answer()
    assert (answer.status, answer.json["error"]["code"]) == (429, "overload")
    for client in clients:
        client.close()


Headers = dict[str, str]


def released(site: Site, *headers: Headers) -> list[int]:
    """One request runs, others with these headers wait, one after the other; then it ends.

    Returns:
        The order in which the backend gets the others, one at a time.
    """
    backend = site.backend
    before = len(backend.requests)
    backend.next(ttft=0.3)
    # Their service is to count: as many tokens as are expected of them.
    backend.behave(n_tokens=300)
    clients = [site.short({"x-prefixgate-priority": "high"})]
    backend.wait_requests(before + 1)
    for number, each in enumerate(headers):
        clients.append(site.short(each | {"x-place": str(number)}))
        site.waits(number + 1)
    arrived = backend.wait_requests(before + 1 + len(headers))[before + 1 :]
    for client in clients:
        assert client.answer().status == 200
        client.close()
    return [int(request.header(b"x-place") or b"") for request in arrived]


def goes(order: list[int], *headers: Headers) -> Check:
    """Those that wait go in this order."""

    def check(site: Site) -> None:
        assert released(site, *headers) == order

    return check


def priority(name: str) -> Headers:
    return {"x-prefixgate-priority": name}


def due(milliseconds: int) -> Headers:
    return {"x-prefixgate-ttft-ms": str(milliseconds)}


def tenant(name: str) -> Headers:
    return {"x-team": name}


def forgets_tenants(site: Site) -> None:
    """What was served to one while the other waited is forgotten once a third has come."""
    assert released(site, tenant("a"), tenant("b")) == [0, 1]
    assert released(site, tenant("b") | due(60_000), tenant("a") | due(30_000)) == [1, 0]


def tells_tenants_apart(site: Site) -> None:
    body = CHAT.body(["hello"])
    teams = {site.explain(body, **{"x-team": team})["tenant"] for team in ("a", "b")}
    assert len(teams - {None}) == 2


def refuses_a_second_waiter(send: Callable[[Site], RawClient]) -> Check:
    def check(site: Site) -> None:
        site.backend.behave(ttft=30.0)
        clients = [send(site)]
        site.backend.wait_requests(1)
        clients.append(send(site))
        site.waits(1)
        clients.append(send(site))
        answer = clients[-1].answer()
        assert (answer.status, answer.json["error"]["code"]) == (429, "queue_full")
        for client in clients:
            client.close()

    return check


def passes_priorities_on(site: Site) -> None:
    answer = site.gw.post(CHAT.path, CHAT.body(["hello"]), x_prefixgate_priority="high")
    assert answer.status_code == 200
    [request] = site.backend.requests
    assert request.json == {"priority": -1, **CHAT.body(["hello"])}


def prefill_goes_first(site: Site) -> None:
    """One of each class runs, one of each waits, and the backend comes back for both at once."""
    backend, gw = site.backend, site.gw
    # Nothing is left to be reused: the order of dialling is the order of release.
    backend.behave(itl=0.05, n_tokens=1000, framing=Framing.CLOSE)
    running = [site.short(), site.long()]
    for client in running:
        client.events(1)
    waiting = [site.short()]
    site.waits(1)
    waiting.append(site.long())
    site.waits(2)
    id = gw.backend_id(backend.url)
    gw.admin("POST", f"/backends/{id}/drain")
    for client in running:
        client.close()
    gw.settles(lambda metrics: metrics.total("prefixgate_in_flight") == 0)
    gw.admin("POST", f"/backends/{id}/undrain")
    _, _, *released = backend.wait_requests(4)
    released.sort(key=lambda request: request.connection)
    assert [len(request.body) > 10_000 for request in released] == [True, False]
    for client in waiting:
        client.close()


def queues(send: Callable[[Site], RawClient], after: int) -> Check:
    """So many run, and the next one waits."""

    def check(site: Site) -> None:
        site.backend.behave(ttft=30.0)
        running = [send(site) for _ in range(after)]
        site.backend.wait_requests(after)
        waiting = send(site)
        site.waits(1)
        assert len(site.backend.requests) == after
        for client in (*running, waiting):
            client.close()

    return check


def refuses_to_queue(send: Callable[[Site], RawClient], code: str) -> Check:
    """One runs, and the next one is refused."""

    def check(site: Site) -> None:
        site.backend.behave(ttft=30.0)
        running = send(site)
        site.backend.wait_requests(1)
        with send(site) as second:
            answer = second.answer()
        assert answer.json["error"]["code"] == code
        assert int(answer.header("retry-after") or 0) >= 1
        running.close()

    return check


# retries


def tries_again_late(site: Site) -> None:
    site.add_second()
    site.backend.next(hang=True)
    assert site.gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
    assert len(site.backend.requests) == 2


def passes_the_refusal_on(site: Site) -> None:
    site.add_second()
    site.backend.next(status=503)
    assert site.gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 503
    assert len(site.backend.requests) == 1


# index


def evicts_beyond_the_bound(site: Site) -> None:
    with site.gw.client() as client:
        for number in range(60):
            prompt = text(f"bound {number}", 100) + "x" * 8000
            client.exchange(COMPLETIONS.path, {"model": "m", "prompt": prompt})
    metrics = site.gw.metrics()
    assert metrics.total("prefixgate_index_evicted_blocks_total") > 0
    assert metrics.total("prefixgate_index_blocks") <= 1000


# stored


def forgets_owners(*ids: str) -> Check:
    """It is no longer known who has the first response, so that any backend is asked for it."""

    def check(site: Site) -> None:
        body = RESPONSES.body(["hello"])
        for id in ids:
            site.backend.next(response_id=id)
            assert site.gw.post(RESPONSES.path, body).status_code == 200
        time.sleep(0.3)
        site.add_second()
        site.gw.admin("DELETE", f"/backends/{site.gw.backend_id(site.backend.url)}")
        answer = site.gw.post(RESPONSES.path, {**body, "previous_response_id": ids[0]})
        # Otherwise it would be known to be lost.
        assert answer.status_code == 200

    return check


# health


def probes_often(site: Site) -> None:
    def healths() -> int:
        return sum(probe.path == "/health" for probe in site.backend.probes)

    before = healths()
    site.backend.wait(lambda: healths() >= before + 4, timeout=4.0)


def asks_for_load(site: Site) -> None:
    """The default is two seconds."""

    def polls() -> int:
        return sum(probe.path == "/metrics" for probe in site.backend.probes)

    before = polls()
    site.backend.wait(lambda: polls() >= before + 6, timeout=5.0)


def sends_nothing_to_a_full_cache(site: Site) -> None:
    """It is no fuller than the default allows."""
    site.backend.tells(running=3, kv_use=0.7)
    site.gw.settles(lambda m: m.total("prefixgate_backend_reported_kv_use") == 0.7)
    with site.short() as client:
        site.waits(1)
        site.backend.tells(running=3, kv_use=0.4)
        assert client.answer().status == 200


def gives_up_on_slow_probes(site: Site) -> None:
    backend = site.backend
    backend.probes.clear()
    backend.health = Health.HANG

    def given_up() -> list[Recorded]:
        return [p for p in backend.probes if p.path == "/health" and p.closed is not None]

    backend.wait(lambda: bool(given_up()))
    [probe] = given_up()[:1]
    assert probe.closed is not None
    assert probe.closed - probe.arrived < 1.5


def ejects_after_one_probe(site: Site) -> None:
    site.backend.health = Health.UNAVAILABLE
    [entry] = site.settled(lambda entry: entry["state"] == "ejected")
    assert entry["failed_probes"] == 1


def asks_nobody(site: Site) -> None:
    assert site.gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
    assert site.backend.probes == []


# breaker


def fails(site: Site, count: int = 1) -> None:
    for _ in range(count):
        site.backend.next(script=(b"banana\r\n\r\n",))
        assert site.gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 502


def serves(site: Site) -> bool:
    return site.gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200


def state(site: Site) -> str:
    [entry] = site.gw.admin("GET", "/backends")
    return str(entry["breaker"]["state"])


def opens_at_once(site: Site) -> None:
    fails(site)
    assert state(site) == "open"
    assert site.gw.metrics().total("prefixgate_backend_ejections_total") == 1


def opens_at_a_share(site: Site) -> None:
    for _ in range(2):
        assert serves(site)
        assert serves(site)
        fails(site)
    assert state(site) == "open"


def forgets_failures(site: Site) -> None:
    for _ in range(3):
        fails(site)
        assert serves(site)
        time.sleep(0.6)
    assert state(site) == "closed"


def is_tried_after(seconds: float) -> Check:
    def check(site: Site) -> None:
        fails(site)
        [entry] = site.gw.admin("GET", "/backends")
        assert 0.0 < entry["breaker"]["until_seconds"] <= seconds
        site.settled(lambda entry: entry["breaker"]["state"] == "half_open")
        assert serves(site)
        assert state(site) == "closed"

    return check


def is_tried_again(site: Site) -> None:
    fails(site)
    for _ in range(4):
        site.settled(lambda entry: entry["breaker"]["state"] == "half_open", timeout=2.0)
        fails(site)
    [entry] = site.gw.admin("GET", "/backends")
    assert entry["breaker"]["until_seconds"] <= 0.6


def tries_at_a_time(count: int) -> Check:
    def check(site: Site) -> None:
        fails(site)
        site.settled(lambda entry: entry["breaker"]["state"] == "half_open")
        site.backend.requests.clear()
        site.backend.behave(ttft=30.0)
        sent = [site.short() for _ in range(count + 2)]
        site.waits(2)
        assert len(site.backend.requests) == count
        for client in sent:
            client.close()

    return check


# backpressure


def tells_to_wait(seconds: int) -> Check:
    def check(site: Site) -> None:
        site.backend.next(status=429)
        answer = site.gw.post(CHAT.path, CHAT.body(["hello"]))
        assert answer.headers["retry-after"] == str(seconds)
        [entry] = site.gw.admin("GET", "/backends")
        assert seconds - 2 < entry["busy_seconds"] <= seconds

    return check


def comes_back_from_busy(site: Site) -> None:
    site.backend.next(status=503, headers=(("Retry-After", "60"),))
    answer = site.gw.post(CHAT.path, CHAT.body(["hello"]))
    assert answer.headers["retry-after"] == "60"
    site.settled(lambda entry: entry["busy_seconds"] is None, timeout=3.0)


def takes_when_busy(count: int) -> Check:
    def check(site: Site) -> None:
        site.backend.next(status=503, headers=(("Retry-After", "10"),))
        assert site.gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 503
        site.backend.requests.clear()
        site.backend.behave(ttft=30.0)
        sent = [site.short() for _ in range(count + 1)]
        site.waits(1)
        assert len(site.backend.requests) == count
        for client in sent:
            client.close()

    return check


# timeouts


def gives_up_connecting(site: Site) -> None:
    port = site.backend.port
    site.backend.stop()
    with FullListener(port):
        started = time.monotonic()
        answer = site.gw.post(CHAT.path, CHAT.body(["hello"]))
        took = time.monotonic() - started
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "connect_timeout"
    assert took < 4.0


def gives_up_waiting(site: Site) -> None:
    site.backend.next(hang=True)
    answer = site.gw.post(CHAT.path, CHAT.body(["hello"]))
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "first_byte_timeout"


def gives_up_on_long_answers(site: Site) -> None:
    site.backend.next(n_tokens=1000, itl=0.02)
    with site.gw.client() as client:
        stream = client.exchange(CHAT.path, CHAT.stream()).stream
    assert stream.errors[0]["error"]["code"] == "total_timeout"
    assert len(stream.events) > 2


def gives_up_in_the_middle(site: Site) -> None:
    site.backend.next(silent_after=3)
    with site.gw.client() as client:
        stream = client.exchange(CHAT.path, CHAT.stream()).stream
    assert stream.errors[0]["error"]["code"] == "idle_timeout"


# admin, log


def wants_the_token(site: Site) -> None:
    url = f"{site.gw.url}/admin/v1/backends"
    assert httpx.get(url, trust_env=False).status_code == 401
    assert site.gw.http.get("/admin/v1/backends").status_code == 200


def lets_readers_read(site: Site) -> None:
    url = f"{site.gw.url}/admin/v1"
    with httpx.Client(headers={"authorization": f"Bearer {API_KEY}"}, trust_env=False) as client:
        assert client.get(f"{url}/backends").status_code == 200
        assert client.post(f"{url}/index/flush").status_code == 403


def keeps_admin_apart(site: Site) -> None:
    assert site.gw.http.get("/admin/v1/backends").status_code == 404


def allows_no_backend_here(site: Site) -> None:
    answer = site.gw.http.post("/admin/v1/backends", json={"url": "http://127.0.0.1:9"})
    assert answer.status_code == 400


def wants_a_key(site: Site) -> None:
    assert site.gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 401


def knows_the_key(site: Site) -> None:
    answer = site.gw.post(CHAT.path, CHAT.body(["hello"]), x_api_key=API_KEY)
    assert (answer.status_code, answer.headers["x-ratelimit-limit-requests"]) == (200, "5")


def refuses_what_it_cannot_look_up(site: Site) -> None:
    answer = site.gw.post(CHAT.path, CHAT.body(["hello"]), x_api_key=API_KEY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "limits_unavailable")
    assert answer.headers["retry-after"] == "1"


def has_open_metrics(site: Site) -> None:
    assert site.gw.http.get("/metrics").status_code == 200


def passes_keys_on(site: Site) -> None:
    site.gw.post(CHAT.path, CHAT.body(["hello"]), x_api_key=API_KEY)
    [request] = site.backend.requests
    assert request.header(b"x-api-key") == API_KEY.encode()


def says_more(site: Site) -> None:
    assert " DEBUG " in site.gw.log


def writes_lines(site: Site) -> None:
    site.gw.post(CHAT.path, CHAT.body(["hello"]))
    site.gw.stop()
    [line] = (site.directory / "access.jsonl").read_text().splitlines()
    assert json.loads(line)["status"] == 200


def writes_chains(site: Site) -> None:
    site.gw.post(CHAT.path, CHAT.body([text("chain", 1000)]))
    site.gw.stop()
    [line] = (site.directory / "access.jsonl").read_text().splitlines()
    chain = base64.b64decode(json.loads(line)["chain"])
    assert len(chain) >= 8 * 7
    assert len(chain) % 8 == 0


def writes_decisions(site: Site) -> None:
    site.gw.post(CHAT.path, CHAT.body(["hello"]))
    site.gw.stop()
    [line] = map(json.loads, (site.directory / "decisions.jsonl").read_text().splitlines())
    assert line["reason"] == "only"
    [candidate] = line["candidates"]
    assert candidate["backend"] == line["backend"]
    assert candidate["open"] is True
    assert candidate["terms"]["total"] == pytest.approx(candidate["score"])
