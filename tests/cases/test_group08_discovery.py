"""Group 8: where backends come from, and what happens when they come and go under traffic."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.app import Gateway
from gateway.config import Settings, convert
from gateway.scheduling.ticket import RefusalReason
from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess, free_port
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT, Json, text

CYCLES = 100
RATE = 50.0


def urls(gw: GatewayProcess) -> list[str]:
    return sorted(entry["url"] for entry in gw.admin("GET", "/backends"))


def up(gw: GatewayProcess, count: int) -> None:
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == count)


# L02


def test_L02_a_removal_nobody_was_told_of_heals_by_the_next_list(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    a, b = start_backend(), start_backend()
    path = tmp_path / "backends.json"

    def write(*backends: FakeBackend) -> None:
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"backends": [{"url": each.url} for each in backends]}))
        new.replace(path)

    write(a, b)
    source = {"file": [{"path": str(path), "interval": 0.1}], "linger": 0.3}
    gw = gateway([], discovery=source, health={"interval": 0.2, "unhealthy_after": 1})
    up(gw, 2)
    # A is gone, and the source does not say so: nobody is sent there, and it shows.
    a.stop()
    gw.settles(lambda metrics: metrics.total("prefixgate_discovery_unreachable") == 1)
    up(gw, 1)
    [seen] = gw.admin("GET", "/discovery")
    assert (seen["unreachable"], len(seen["backends"]), seen["failures"]) == (1, 2, 0)
    for number in range(10):
        assert gw.post(CHAT.path, CHAT.body([text(f"{number}", 200)])).status_code == 200
    assert a.requests == []
    # Then it does.
    write(b)
    gw.settles(lambda metrics: metrics.total("prefixgate_discovery_entries") == 1)
    deadline = time.monotonic() + 5.0
    while urls(gw) != [b.url]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert gw.metrics().total("prefixgate_discovery_unreachable") == 0


def test_L02_a_file_that_is_broken_takes_nobody_out(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    a = start_backend()
    path = tmp_path / "backends.yaml"
    path.write_text(f"backends:\n- url: {a.url}\n")
    gw = gateway([], discovery={"file": [{"path": str(path), "interval": 0.1}], "linger": 0.0})
    up(gw, 1)
    path.write_text(f"backends:\n- url: {a.url}\n  weight: 2\n")
    gw.settles(lambda metrics: metrics.total("prefixgate_discovery_failures_total") > 0)
    [seen] = gw.admin("GET", "/discovery")
    assert "unknown field `weight`" in seen["cause"]
    assert "its last list stays" in gw.log
    assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200


def test_L02_what_is_dropped_finishes_what_it_has_and_gets_nothing_new(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    a, b = start_backend(), start_backend()
    path = tmp_path / "backends.json"
    path.write_text(json.dumps({"backends": [{"url": a.url}]}))
    gw = gateway([], discovery={"file": [{"path": str(path), "interval": 0.1}], "linger": 0.5})
    up(gw, 1)
    a.behave(itl=0.05, n_tokens=40)
    with gw.client() as client:
        client.request(CHAT.path, CHAT.stream())
        client.events(2)
        path.write_text(json.dumps({"backends": [{"url": b.url}]}))
        gw.settles(
            lambda metrics: metrics.by("prefixgate_backend_state", "state").get("draining") == 1
        )
        up(gw, 1)
        for _ in range(3):
            assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
        assert len(a.requests) == 1
        # It is forgotten while the stream goes on, which comes to its end.
        deadline = time.monotonic() + 5.0
        while urls(gw) != [b.url]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert client.answer().stream.done
    gw.settles_idle()


# L13

SPELLINGS = {
    "upper case": "HTTP://LOCALHOST:{port}",
    "trailing slash": "http://localhost:{port}/",
    "several": "http://localhost:{port}//",
    "spaces around": " http://localhost:{port} ",
}
REFUSED = {
    "no scheme": "localhost:{port}",
    "user and password": "http://u:secret@localhost:{port}",
    "rank suffix": "http://localhost:{port}@2",
    "another scheme": "ftp://localhost:{port}",
    "query": "http://localhost:{port}/?x=1",
    "fragment": "http://localhost:{port}#1",
    "number for a host": "http://2:{port}",
    "octal": "http://0177.0.0.1:{port}",
    "no host": "http://:{port}",
    "no port after the colon": "http://localhost:",
    "port 0": "http://localhost:0",
    "port too high": "http://localhost:99999",
    "rank after the port": "http://localhost:{port}:1",
    "zone": "http://[fe80::1%25eth0]:{port}",
    "line break": "http://localhost:{port}\r\nx: y",
    "backslash": "http://localhost:{port}\\@elsewhere",
    "empty": "",
}


@pytest.fixture(scope="module")
def odd(module_gateway: StartGateway) -> GatewayProcess:
    return module_gateway([])


@pytest.mark.parametrize("name", REFUSED)
def test_L13_an_address_that_is_not_clear_is_refused(odd: GatewayProcess, name: str) -> None:
    url = REFUSED[name].format(port=free_port())
    answer = odd.http.post("/admin/v1/backends", json={"url": url})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "url"
    assert "expected http://host:port" in error["message"]
    assert "secret" not in answer.text + odd.log
    assert urls(odd) == []


@pytest.mark.parametrize("where", ["[::1]", "127.0.0.1"])
@pytest.mark.parametrize("path", ["", "/poc-1", "/poc-1/"])
def test_L13_requests_go_to_the_host_that_was_named(
    start_backend: StartBackend, gateway: StartGateway, where: str, path: str
) -> None:
    backend = start_backend(host=where.strip("[]"))
    gw = gateway([])
    gw.admin("POST", "/backends", {"url": f"http://{where}:{backend.port}{path}", "models": ["m"]})
    gw.settles(lambda metrics: len(backend.probes) > 0)
    if not path:
        up(gw, 1)
        assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
        [request] = backend.requests
        assert request.header(b"host") == f"{where}:{backend.port}".encode()
    assert {probe.path.startswith(path.rstrip("/")) for probe in backend.probes} == {True}


def test_L13_spellings_of_one_address_are_one_backend(
    start_backend: StartBackend, tmp_path: Path
) -> None:
    backend = start_backend()
    named = [each.format(port=backend.port) for each in SPELLINGS.values()]
    path = tmp_path / "backends.json"
    path.write_text(json.dumps({"backends": [{"url": url} for url in named]}))
    source = {"file": [{"path": str(path)}]}
    settings = {"backends": [{"url": url} for url in named], "discovery": source}
    with GatewayProcess(settings, tmp_path, ready=False) as gw:
        up(gw, 1)
        assert "named twice: merged" in gw.log
        for url in named:
            answer = gw.http.post("/admin/v1/backends", json={"url": url})
            assert answer.status_code == 200
            assert answer.json()["url"] == f"http://localhost:{backend.port}"
        assert len(urls(gw)) == 1


# L14


class Traffic(threading.Thread):
    """Requests at a steady rate, every second one a stream.

    Attributes:
        failed: answers that were not what they should be.
        count: all of them.
    """

    def __init__(self, gw: GatewayProcess) -> None:
        super().__init__()
        self.failed: list[str] = []
        self.count = 0
        self._gw = gw
        self._ends = threading.Event()

    def run(self) -> None:
        due = time.monotonic()
        with self._gw.client() as client:
            while not self._ends.is_set():
                self._ask(client)
                due += 2 / RATE
                self._ends.wait(max(0.0, due - time.monotonic()))

    def _ask(self, client: RawClient) -> None:
        self.count += 1
        turns = [text(f"{self.ident} {self.count}", 200)]
        if self.count % 2:
            answer = client.exchange(CHAT.path, CHAT.stream(turns))
            good = answer.status == 200 and answer.stream.done
        else:
            answer = client.exchange(CHAT.path, CHAT.body(turns))
            good = answer.status == 200
        if not good:
            self.failed.append(f"{answer.status} {answer.body!r}")

    def end(self) -> None:
        self._ends.set()
        self.join()


def test_L14_removal_and_adding_again_under_traffic(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    a, b = start_backend(), start_backend()
    for backend in (a, b):
        backend.behave(itl=0.002, n_tokens=5)
    gw = gateway([b])
    traffic = [Traffic(gw), Traffic(gw)]
    for each in traffic:
        each.start()
    try:
        for _ in range(CYCLES):
            before = len(a.requests)
            added = gw.admin("POST", "/backends", {"url": a.url})
            assert (added["state"], added["breaker"]["failures"]) == ("starting", 0)
            # Counted from the start again, but for what was under way and ends only now.
            routed = gw.metrics().total("prefixgate_routed_requests_total", backend=added["id"])
            assert routed <= len(a.requests) - before + len(traffic)
            up(gw, 2)
            a.wait(lambda before=before: len(a.requests) > before)
            gw.admin("DELETE", f"/backends/{added['id']}")
    finally:
        for each in traffic:
            each.end()
    assert [failure for each in traffic for failure in each.failed] == []
    assert urls(gw) == [b.url]
    metrics = gw.settles_idle()
    assert sum(each.count for each in traffic) >= CYCLES
    assert set(metrics.outcomes) == {"ok"}
    assert metrics.total("prefixgate_routed_requests_total") < len(a.requests) + len(b.requests)
    assert "Traceback" not in gw.log


def test_L14_a_list_that_flaps_under_traffic(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    a, b = start_backend(), start_backend()
    path = tmp_path / "backends.json"
    lists = [json.dumps({"backends": [{"url": a.url}][:count]}) for count in (1, 0)]
    path.write_text(lists[0])
    gw = gateway([b], discovery={"file": [{"path": str(path), "interval": 0.02}], "linger": 0.05})
    up(gw, 2)
    traffic = Traffic(gw)
    traffic.start()
    try:
        for number in range(20):
            path.write_text(lists[number % 2])
            time.sleep(0.1 + number % 3 * 0.1)
    finally:
        traffic.end()
    assert traffic.failed == []
    assert set(gw.settles_idle().outcomes) == {"ok"}


def in_process(backends: list[FakeBackend], **settings: Any) -> Gateway:
    tree = {"backends": [{"url": backend.url} for backend in backends], **settings}
    return Gateway(convert(tree, Settings, "test"))


async def run(gateway: Gateway, scene: Any) -> None:
    """The gateway without a socket of its own, from its start to its end."""
    events: asyncio.Queue[Json] = asyncio.Queue()
    told: asyncio.Queue[Json] = asyncio.Queue()
    life = asyncio.create_task(
        gateway({"type": "lifespan", "asgi": {"version": "3.0"}}, events.get, told.put)
    )
    await events.put({"type": "lifespan.startup"})
    assert (await told.get())["type"] == "lifespan.startup.complete"
    transport = httpx.ASGITransport(app=gateway)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        await scene(client)
    await events.put({"type": "lifespan.shutdown"})
    await life


async def until(condition: Any) -> None:
    deadline = time.monotonic() + 5.0
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("others", [1, 0])
def test_L14_removed_between_the_grant_and_the_sending(
    start_backend: StartBackend, others: int
) -> None:
    """It is placed again; where there is nobody else it is refused as any other would be."""
    a, *rest = [start_backend() for _ in range(1 + others)]
    gateway = in_process([a], scheduling={"decode": {"max_requests": 1}, "gate": None})

    async def scene(client: httpx.AsyncClient) -> None:
        await until(lambda: gateway.pools.get("m") is not None)
        a.behave(ttft=0.5)
        requests = [client.post(CHAT.path, json=CHAT.body(["hello"])) for _ in range(2)]
        first, second = (asyncio.create_task(request) for request in requests)
        pool = gateway.pools.get("m")
        assert pool is not None
        await until(lambda: pool.snapshot().unplaced + sum(pool.snapshot().backends.values()) == 1)
        [backend] = gateway.fleet
        # All in one go: the waiting request is granted a's second place, and a is removed.
        gateway.pools.scheduling = Settings().scheduling
        for b in rest:
            gateway.reconciler.add(convert({"url": b.url}, type(backend.config), "test"))
            [other] = [each for each in gateway.fleet if each is not backend]
            assert backend.facts is not None
            gateway.fleet.probe_succeeded(other, backend.facts)
        gateway.reconciler.remove(backend.id)
        answer = await second
        if rest:
            assert answer.status_code == 200
            assert len(rest[0].requests) == 1
        else:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == RefusalReason.NO_BACKEND.value
        assert (await first).status_code == 200
        assert len(a.requests) == 1
        assert all(load.in_flight == 0 for load in gateway.loads.values())

    asyncio.run(run(gateway, scene))


def test_L14_a_late_removal_does_not_remove_the_successor(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    """A list drops a backend; before it is forgotten for that, the operator removes it and adds
    it again."""
    a = start_backend()
    path = tmp_path / "backends.json"
    path.write_text(json.dumps({"backends": [{"url": a.url}]}))
    gw = gateway([], discovery={"file": [{"path": str(path), "interval": 0.05}], "linger": 2.0})
    up(gw, 1)
    path.write_text(json.dumps({"backends": []}))
    up(gw, 0)
    gw.admin("DELETE", f"/backends/{gw.backend_id(a.url)}")
    gw.admin("POST", "/backends", {"url": a.url})
    up(gw, 1)
    time.sleep(2.5)
    [entry] = gw.admin("GET", "/backends")
    assert (entry["state"], entry["source"]) == ("healthy", "admin")
