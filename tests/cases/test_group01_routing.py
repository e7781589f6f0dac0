"""Group 1: routing quality and imbalance, seen from the backends."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import Behaviour
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, Json, text


def prompt(prompt: str) -> Json:
    return {"model": "m", "prompt": prompt}


@contextmanager
def under_way(
    gw: GatewayProcess, bodies: Sequence[Json], path: str = COMPLETIONS.path
) -> Iterator[list[RawClient]]:
    """Requests that have all been sent."""
    with ExitStack() as stack:
        clients = []
        for body in bodies:
            client = stack.enter_context(gw.client())
            client.request(path, body)
            clients.append(client)
        yield clients


def in_flight(gw: GatewayProcess, count: int) -> dict[str, float]:
    """By backend, once there are so many."""
    metrics = gw.settles(lambda metrics: metrics.total("prefixgate_in_flight") == count, 10.0)
    return metrics.by("prefixgate_in_flight", "backend")


def counts(backends: Sequence[FakeBackend]) -> list[int]:
    return [len(backend.requests) for backend in backends]


def busy(backend: FakeBackend, gw: GatewayProcess, body: Json, *, others: Any = ()) -> RawClient:
    """A request that stays at one backend: the others are drained while it is placed."""
    ids = [gw.backend_id(other.url) for other in others]
    for id in ids:
        gw.admin("POST", f"/backends/{id}/drain")
    client = gw.client()
    count = len(backend.requests)
    client.request(COMPLETIONS.path, body)
    backend.wait_requests(count + 1)
    for id in ids:
        gw.admin("POST", f"/backends/{id}/undrain")
    return client


# R01

SHARED = text("shared", 4000)
ROUTES: dict[str, Json] = {
    CHAT.path: CHAT.stream([SHARED]),
    COMPLETIONS.path: COMPLETIONS.stream([SHARED]),
    EMBEDDINGS.path: EMBEDDINGS.body([SHARED]),
    RESPONSES.path: RESPONSES.stream([SHARED]),
    MESSAGES.path: MESSAGES.stream([SHARED]),
    "/inference/v1/generate": {"model": "m", "text": SHARED},
}


@pytest.mark.parametrize("path", ROUTES)
def test_R01_every_route_counts_as_load(
    start_backend: StartBackend, gateway: StartGateway, path: str
) -> None:
    backends = [start_backend() for _ in range(3)]
    gw = gateway(backends)
    for backend in backends:
        backend.behave(ttft=60.0)
    with under_way(gw, [ROUTES[path]] * 60, path):
        spread = in_flight(gw, 60)
        # What is dispatched counts at once; the backends take a while to read it.
        for backend in backends:
            backend.wait_requests(int(spread.get(gw.backend_id(backend.url), 0)), timeout=30.0)
        assert sorted(spread.values()) == sorted(counts(backends))
        assert max(spread.values()) <= 40
        assert min(spread.get(gw.backend_id(backend.url), 0) for backend in backends) >= 5
    gw.settles_idle()


# R02


def test_R02_new_prompts_go_to_the_idle_and_not_to_the_emptiest(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    a, b = start_backend(), start_backend()
    gw = gateway([a, b])
    a.behave(ttft=60.0)
    with ExitStack() as stack:
        # b holds much and has nothing to do.
        stack.enter_context(busy(b, gw, prompt(text("large", 100_000)), others=[a])).answer()
        for number in range(20):
            body = prompt(text(f"hanging {number}", 500))
            stack.enter_context(busy(a, gw, body, others=[b]))
        for number in range(20):
            assert gw.post(COMPLETIONS.path, prompt(text(f"new {number}", 500))).is_success
    assert len(b.requests) - 1 >= 18


# R04


def test_R04_what_is_moved_away_goes_where_it_is_warm(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    a, b, c = (start_backend() for _ in range(3))
    gw = gateway([a, b, c])
    shared = text("X", 20_000)
    with ExitStack() as stack:
        stack.enter_context(busy(c, gw, prompt(shared), others=[a, b])).answer()
        for backend, count in ((a, 30), (b, 2), (c, 3)):
            others = [other for other in (a, b, c) if other is not backend]
            backend.behave(ttft=60.0)
            for number in range(count):
                body = prompt(text(f"{backend.port} {number}", 40))
                stack.enter_context(busy(backend, gw, body, others=others))
            backend.behave()
        assert gw.post(COMPLETIONS.path, prompt(shared + "q")).is_success
    assert len(c.requests) == 1 + 3 + 1


# R05


def kv_use(gw: GatewayProcess, expected: dict[FakeBackend, float]) -> None:
    """Wait until the gateway has read from each backend how full its KV cache is."""
    ids = {gw.backend_id(backend.url): use for backend, use in expected.items()}
    gw.settles(lambda m: m.by("prefixgate_backend_reported_kv_use", "backend") == ids)


@pytest.mark.parametrize("limit", [None, 0.95], ids=["by its cost", "by the limit"])
def test_R05_a_few_huge_requests_are_load_too(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Any, limit: float | None
) -> None:
    a, b = start_backend(), start_backend()
    for backend in (a, b):
        backend.tells()
    log = tmp_path / "access.jsonl"
    gw = gateway(
        [a, b],
        scheduling={"max_kv_use": limit},
        health={"load_interval": 0.1},
        log={"access": str(log)},
    )
    shared = text("X", 8000)
    with ExitStack() as stack:
        stack.enter_context(busy(a, gw, prompt(shared), others=[b])).answer()
        a.tells(running=3, kv_use=0.97)
        b.tells(running=3, kv_use=0.10)
        kv_use(gw, {a: 0.97, b: 0.10})
        answer = gw.post(COMPLETIONS.path, prompt(shared + "q"))
    assert answer.headers["x-prefixgate-backend"] == gw.backend_id(b.url)
    assert answer.headers["x-prefixgate-decision"] == "spill"
    assert [len(a.requests), len(b.requests)] == [1, 1]
    assert gw.metrics().by("prefixgate_spills_total", "cause") == {"memory": 1}
    a.tells(running=3, kv_use=0.2)
    kv_use(gw, {a: 0.2, b: 0.10})
    assert gw.post(COMPLETIONS.path, prompt(shared + "r")).is_success
    gw.stop()
    spills = [json.loads(line)["spill"] for line in log.read_text().splitlines()]
    assert spills == [None, "memory", None]


@pytest.mark.parametrize("policy", ["prefix_affinity", "least_load"])
def test_R05_what_others_send_there_is_load_too(
    start_backend: StartBackend, gateway: StartGateway, policy: str
) -> None:
    """Clients of their own, or another gateway in front of the same engines."""
    a, b = start_backend(), start_backend()
    a.tells(running=40, waiting=20, kv_use=0.5)
    b.tells()
    gw = gateway([a, b], policy={"name": policy}, health={"load_interval": 0.1})
    kv_use(gw, {a: 0.5})
    for number in range(20):
        assert gw.post(COMPLETIONS.path, prompt(text(f"{number}", 400))).is_success
    assert counts([a, b]) == [0, 20]
    view = gw.admin("GET", f"/backends/{gw.backend_id(a.url)}")
    assert (view["reported"]["running"], view["reported"]["others"]) == (40, 60)
    assert view["load"]["in_flight"] == 0
    a.tells()
    gw.settles(lambda m: m.total("prefixgate_backend_reported_running") == 0)
    for number in range(20):
        assert gw.post(COMPLETIONS.path, prompt(text(f"later {number}", 400))).is_success
    assert min(counts([a, b])) > 0


def test_R05_by_the_ledger_alone(start_backend: StartBackend, gateway: StartGateway) -> None:
    a, b = start_backend(), start_backend()
    gw = gateway([a, b], scheduling={"gate": None, "ranges": []})
    for backend in (a, b):
        id = gw.backend_id(backend.url)
        gw.admin("PATCH", f"/backends/{id}", {"capacity_tokens": 40_000})
    shared = text("X", 8000)
    with ExitStack() as stack:
        stack.enter_context(busy(a, gw, prompt(shared), others=[b])).answer()
        for backend, other, size in ((a, b, 52_000), (b, a, 400)):
            backend.behave(itl=60.0, n_tokens=2)
            for number in range(3):
                body = prompt(text(f"{backend.port} {number}", size)) | {"stream": True}
                client = stack.enter_context(busy(backend, gw, body, others=[other]))
                client.events(1)
            backend.behave()
        answer = gw.post(COMPLETIONS.path, prompt(shared + "q"))
    assert answer.headers["x-prefixgate-decision"] == "spill"
    assert len(b.requests) == 3 + 1
    assert gw.metrics().by("prefixgate_spills_total", "cause") == {"memory": 1}


# R07


def test_R07_whatever_is_matched_the_index_learns(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend() for _ in range(3)]
    gw = gateway(backends)
    shared = text("X", 8000)
    for number, end in enumerate(("", "", "follow-up"), 1):
        assert gw.post(COMPLETIONS.path, prompt(shared + end)).is_success
        assert gw.metrics().total("prefixgate_index_nodes") > 0
        assert sorted(counts(backends)) == [0, 0, number]


# R08


def test_R08_a_shared_system_prompt_makes_no_monopoly(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend() for _ in range(3)]
    gw = gateway(backends)
    for backend in backends:
        backend.behave(ttft=2.0)
    system = {"role": "system", "content": text("system", 6000)}
    first = [[system, {"role": "user", "content": text(f"user {n}", 2000)}] for n in range(90)]
    with under_way(
        gw, [{"model": "m", "stream": True, "messages": turn} for turn in first], CHAT.path
    ) as clients:
        for client in clients:
            assert client.answer().stream.done
    assert min(counts(backends)) >= 20
    homes = _by_user(backends)
    for backend in backends:
        backend.reset()
    for turn in first:
        more = [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "and?"}]
        assert gw.post(CHAT.path, {"model": "m", "messages": turn + more}).is_success
    again = _by_user(backends)
    assert sum(again[user] == home for user, home in homes.items()) >= 81


def _by_user(backends: Sequence[FakeBackend]) -> dict[str, int]:
    return {
        request.json["messages"][1]["content"]: at
        for at, backend in enumerate(backends)
        for request in backend.requests
    }


# R10


def test_R10_a_backend_more_moves_few_sessions(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend() for _ in range(4)]
    gw = gateway(backends, policy={"name": "session"})

    def homes() -> dict[int, str]:
        with gw.client() as client:
            return {
                session: client.exchange(
                    COMPLETIONS.path, prompt("x"), headers=[("x-session-id", f"s{session}")]
                ).header("x-prefixgate-backend")
                or ""
                for session in range(500)
            }

    before = homes()
    assert len(set(before.values())) == 4
    added = gw.admin("POST", "/backends", {"url": start_backend().url})["id"]
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 5)
    during = homes()
    moved = [session for session in before if before[session] != during[session]]
    assert 0 < len(moved) <= 150
    assert {during[session] for session in moved} == {added}
    gw.admin("DELETE", f"/backends/{added}")
    after = homes()
    assert sum(after[session] == before[session] for session in before) >= 475


# R11


@pytest.mark.parametrize("policy", ["prefix_affinity", "session", "consistent_hash"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS.path, lambda number: prompt(f"{number}")),
        (CHAT.path, lambda number: {"model": "m", "messages": []}),
        (COMPLETIONS.path, lambda number: {"model": "m", "prompt": [f"{number}", "other"]}),
    ],
    ids=["no session", "no messages", "batch"],
)
def test_R11_no_key_does_not_mean_first_in_the_list(
    start_backend: StartBackend,
    gateway: StartGateway,
    policy: str,
    path: str,
    body: Callable[[int], Json],
) -> None:
    backends = [start_backend() for _ in range(4)]
    gw = gateway(backends, policy={"name": policy})
    for number in range(40):
        assert gw.post(path, body(number)).is_success
    assert min(counts(backends)) >= 5


# R13


def test_R13_load_never_goes_below_zero(start_backend: StartBackend, gateway: StartGateway) -> None:
    a, b = start_backend(), start_backend()
    gw = gateway(
        [a, b],
        breaker={"failures": 1000},
        backpressure={"avoid": 0.1},
        retries={"budget": 1.0},
    )
    for _ in range(5):
        # The first one refuses, the second hangs, and the client leaves meanwhile.
        refusals = [Behaviour(status=503)]
        for backend in (a, b):
            backend.rule = lambda request, left=refusals: left.pop() if left else None
            backend.behave(ttft=60.0)
        count = sum(counts([a, b]))
        with gw.client() as client:
            client.request(CHAT.path, CHAT.stream())
            gw.settles(lambda metrics, count=count: sum(counts([a, b])) == count + 2)
        metrics = gw.settles_idle()
        assert all(load >= 0 for load in metrics.by("prefixgate_in_flight", "backend").values())
    for backend in (a, b):
        backend.reset()
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_busy") == 0)
    for number in range(20):
        assert gw.post(CHAT.path, CHAT.body([f"{number}"])).is_success
    assert min(counts([a, b])) >= 5


# R14


def test_R14_failing_fast_does_not_attract(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    a, b = start_backend(), start_backend()
    gw = gateway(
        [a, b],
        policy={"name": "least_load"},
        health={"interval": 60.0},
        breaker={"open": 60.0, "max_open": 60.0},
    )
    a.behave(status=500)
    b.behave(ttft=1.0)
    with ExitStack() as stack:
        clients = []
        for number in range(60):
            client = stack.enter_context(gw.client())
            client.request(CHAT.path, CHAT.stream([text(f"{number}", 100)]))
            clients.append(client)
            time.sleep(0.05)  # the case's rate
        statuses = Counter(client.answer().status for client in clients)
    # Whatever it refused was served by the other.
    assert statuses == {200: 60}
    ejected = gw.metrics().total("prefixgate_backend_ejections_total")
    assert ejected == 1
    seen = len(a.requests)
    with ThreadPoolExecutor(20) as pool:
        later = [pool.submit(gw.post, CHAT.path, CHAT.body([f"{n}"])) for n in range(20)]
    assert [answer.result().status_code for answer in later] == [200] * 20
    assert len(a.requests) == seen


# R16

POLICIES = (
    "prefix_affinity",
    "least_load",
    "power_of_two",
    "round_robin",
    "consistent_hash",
    "session",
)


@pytest.mark.parametrize("policy", POLICIES)
def test_R16_full_backends_are_passed_over_one_by_one(
    start_backend: StartBackend, gateway: StartGateway, policy: str
) -> None:
    backends = [start_backend() for _ in range(4)]
    d = backends[-1]
    says = {backend: 0.1 if backend is d else 0.95 for backend in backends}
    for backend, use in says.items():
        backend.tells(running=3, kv_use=use)
    gw = gateway(
        backends,
        policy={"name": policy},
        scheduling={"max_kv_use": 0.9},
        health={"load_interval": 0.1},
    )
    kv_use(gw, says)
    for number in range(20):
        assert gw.post(COMPLETIONS.path, prompt(text(f"{number}", 400))).is_success
    assert counts(backends) == [0, 0, 0, 20]
    d.tells(running=30, kv_use=0.93)
    kv_use(gw, says | {d: 0.93})
    impatient = {"x-prefixgate-max-wait-ms": "100"}
    answer = gw.post(COMPLETIONS.path, prompt(text("none", 400)), **impatient)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    # Whoever can wait goes as soon as one has room again.
    with gw.client() as client:
        client.request(COMPLETIONS.path, prompt(text("patient", 400)))
        gw.settles(lambda m: m.total("prefixgate_queue_depth") == 1)
        d.tells(running=3, kv_use=0.2)
        assert client.answer().status == 200
    assert counts(backends) == [0, 0, 0, 21]


def test_R16_whoever_falls_silent_is_neither_full_nor_empty(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    a, b = start_backend(), start_backend()
    for backend in (a, b):
        backend.tells(running=3, kv_use=0.99)
    gw = gateway([a, b], policy={"name": "round_robin"}, health={"load_interval": 0.1})
    kv_use(gw, {a: 0.99, b: 0.99})
    a.hanging = b.hanging = {"/metrics"}
    for number in range(10):
        assert gw.post(COMPLETIONS.path, prompt(text(f"{number}", 400))).is_success
    assert counts([a, b]) == [5, 5]
    metrics = gw.metrics()
    assert metrics.by("prefixgate_backend_reported_kv_use", "backend") == {}
    for backend in (a, b):
        id = gw.backend_id(backend.url)
        assert metrics.total("prefixgate_backend_load_age_seconds", backend=id) > 0.4
        assert metrics.total("prefixgate_backend_load_failures_total", backend=id) > 0
        assert gw.log.count(f"backend {id} ({backend.url}) does not tell its load") == 1


@pytest.mark.parametrize("policy", POLICIES)
def test_R16_by_a_limit_on_the_ledger(
    start_backend: StartBackend, gateway: StartGateway, policy: str
) -> None:
    """Nine tenths of a KV cache are the limit: three are filled beyond, the fourth is not."""
    a, b, c, d = backends = [start_backend() for _ in range(4)]
    ranges = [{"min_tokens": 1, "max_cache_share": 0.9}]
    gw = gateway(
        backends,
        policy={"name": policy},
        index={"capacity_tokens": 10_000},
        scheduling={"gate": None, "ranges": ranges},
    )
    with ExitStack() as stack:
        for backend in (a, b, c):
            others = [other for other in backends if other is not backend]
            backend.behave(ttft=60.0)
            body = prompt(text(f"full {backend.port}", 38_000))
            stack.enter_context(busy(backend, gw, body, others=others))
            backend.behave()
        for number in range(20):
            assert gw.post(COMPLETIONS.path, prompt(text(f"{number}", 400))).is_success
        assert counts(backends) == [1, 1, 1, 20]
        d.behave(ttft=60.0)
        stack.enter_context(busy(d, gw, prompt(text("full", 36_000))))
        impatient = {"x-prefixgate-max-wait-ms": "100"}
        answer = gw.post(COMPLETIONS.path, prompt(text("none", 400)), **impatient)
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1


# R17


def test_R17_a_larger_fleet_does_not_cost_in_proportion(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Any
) -> None:
    backend = start_backend()

    def cpu(fleet: int) -> float:
        """Seconds for 300 requests at a fleet of that size."""
        entries = [{"url": f"{backend.url}/{place}", "kind": "openai"} for place in range(fleet)]
        settings = {"backends": entries, "health": {"interval": 300.0}}
        with GatewayProcess(settings, tmp_path) as gw:
            before = gw.metrics().total("process_cpu_seconds_total")
            with gw.client() as client:
                for number in range(300):
                    body = CHAT.body([text(f"{fleet} {number}", 8000)])
                    assert client.exchange(CHAT.path, body).status == 200
            return gw.metrics().total("process_cpu_seconds_total") - before

    small, large = cpu(5), cpu(250)
    # Fifty times as many backends.
    assert large < 12 * small
