"""Group 8: health. Who can serve is found out without clients' help, and told as it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import Cut
from tests.harness.fake_backend import FakeBackend, Health
from tests.harness.gateway_process import GatewayProcess
from tests.harness.routes import CHAT, COMPLETIONS, Json, text

OFTEN = {"interval": 0.2, "timeout": 1.0, "unhealthy_after": 3}
"""Probes."""


def prompt(prompt: str, model: str = "m") -> Json:
    return {"model": model, "prompt": prompt}


def up(gw: GatewayProcess, count: int) -> None:
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == count, 15.0)


def models(gw: GatewayProcess) -> list[str]:
    answer = gw.http.get("/v1/models")
    assert answer.status_code == 200
    return [entry["id"] for entry in answer.json()["data"]]


def ready(gw: GatewayProcess) -> tuple[int, Json]:
    """What is said of readiness, while the process lives."""
    assert gw.http.get("/live").status_code == 200
    answer = gw.http.get("/ready")
    assert gw.http.get("/health").status_code == answer.status_code
    return answer.status_code, answer.json()


# L01


def test_L01_dead_backends_are_skipped_and_come_back(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    a, b = start_backend(), start_backend()
    gw = gateway([a, b], health=OFTEN, policy={"name": "round_robin"})
    id = gw.backend_id(a.url)
    a.stop()
    statuses = [
        gw.post(COMPLETIONS.path, prompt(text(f"{number}", 100))).status_code
        for number in range(50)
    ]
    assert statuses == [200] * 50
    up(gw, 1)
    # Whoever reads the log learns at once what is wrong, and once.
    said = [line for line in gw.log.splitlines() if f"backend {id}" in line]
    assert sum("a probe failed: " in line for line in said) == 1
    assert sum("is ejected" in line for line in said) == 1
    again = start_backend(port=a.port)
    up(gw, 2)
    for number in range(4):
        assert gw.post(COMPLETIONS.path, prompt(text(f"back {number}", 100))).is_success
    assert len(again.requests) == 2


# L04


def test_L04_without_any_backend_it_lives_and_is_not_ready(gateway: StartGateway) -> None:
    gw = gateway([])
    status, body = ready(gw)
    assert (status, body["status"]) == (503, "no backends")
    assert "no backends: " in gw.log


def test_L04_what_starts_is_not_ready_and_says_why(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    backend.health = Health.UNAVAILABLE
    gw = gateway([backend], ready=False, health=OFTEN | {"unhealthy_after": 1000})

    def reasons() -> Any:
        status, body = ready(gw)
        assert (status, body["status"]) == (503, "no backend can serve a model")
        assert body["backends"] == {"starting": 1}
        return body["reasons"]

    gw.settles(lambda _: bool(reasons() == ["GET /health: status 503"]))
    answer = gw.post(CHAT.path, CHAT.body(["hello"]))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    message = answer.json()["error"]["message"]
    assert message == "No backend is ready yet (GET /health: status 503)."
    backend.health = Health.OK
    up(gw, 1)
    assert ready(gw)[0] == 200
    assert "reasons" not in ready(gw)[1]
    assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200


def test_L04_when_all_are_out_it_is_not_ready_and_names_no_address(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    a, b = start_backend(), start_backend()
    gw = gateway([a, b], health=OFTEN)
    assert ready(gw)[0] == 200
    a.stop()
    b.stop()
    up(gw, 0)
    status, body = ready(gw)
    assert (status, body["backends"]) == (503, {"ejected": 2})
    assert body["reasons"]
    page = gw.http.get("/ready").text + gw.post(CHAT.path, CHAT.body(["hello"])).text
    assert "127.0.0.1" not in page
    assert str(a.port) not in page
    start_backend(port=a.port)
    up(gw, 1)
    assert ready(gw)[0] == 200


# L05


def test_L05_probes_are_answered_under_load_and_beside_pages_that_hang(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Where the case says "99 in 100 within 500 ms" two seconds are allowed: the machine may be
    busy with other things. What hangs here does so for half a minute."""
    backends = [start_backend() for _ in range(4)]
    hung, mute = backends[:2]
    mute.tells()
    gw = gateway(
        backends,
        health={"interval": 0.5, "timeout": 30.0, "load_interval": 0.1},
        scheduling={"gate": None, "decode": {"max_requests": 2000}},
    )
    mute.hanging = {"/metrics"}
    hung.hanging = {"/v1/models"}
    hung.health = Health.HANG
    for backend in backends:
        backend.behave(itl=5.0, n_tokens=1000)
    stop = threading.Event()

    def long_prompts() -> None:
        with gw.client() as client:
            number = 0
            while not stop.is_set():
                number += 1
                body = prompt(text(f"long {number}", 120_000)) | {"max_tokens": 1}
                client.request(COMPLETIONS.path, body | {"stream": False})
                client.answer()

    with ExitStack() as stack:
        for number in range(1000):
            client = stack.enter_context(gw.client())
            client.request(CHAT.path, CHAT.stream([f"{number}"]))
        gw.settles(lambda metrics: metrics.total("prefixgate_in_flight") == 1000, 60.0)
        sender = threading.Thread(target=long_prompts)
        sender.start()
        try:
            took = []
            for _ in range(50):
                before = time.monotonic()
                assert gw.http.get("/health").status_code == 200
                took.append(time.monotonic() - before)
                time.sleep(0.1)
        finally:
            stop.set()
            sender.join()
    assert max(took) < 2.0, sorted(took)[-5:]
    gw.settles_idle(30.0)


# L07


def test_L07_the_model_list_is_that_of_the_living(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    dead = start_backend("gone")
    dead.stop()
    b, c = start_backend("m", "n"), start_backend("n", "o")
    gw = gateway([dead, b, c], ready=False, health=OFTEN)
    up(gw, 2)
    for _ in range(10):
        assert models(gw) == ["m", "n", "o"]
        assert gw.http.get("/v1/models/o").status_code == 200
    assert gw.http.get("/v1/models/gone").status_code == 404
    c.stop()
    up(gw, 1)
    assert models(gw) == ["m", "n"]


# L08


def test_L08_one_address_serves_several_models(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    a = start_backend("base", "lora-1", "lora-2")
    gw = gateway([a], health=OFTEN | {"interval": 1.0})
    assert models(gw) == ["base", "lora-1", "lora-2"]
    for model in a.models:
        assert gw.post(COMPLETIONS.path, prompt("hello", model)).is_success
    assert [request.json["model"] for request in a.requests] == list(a.models)
    a.models = ("base", "lora-1")
    gw.settles(lambda _: models(gw) == ["base", "lora-1"], 3.0)
    answer = gw.post(COMPLETIONS.path, prompt("hello", "lora-2"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert len(a.requests) == 3
    a.models = ("base", "lora-3")
    gw.settles(lambda _: models(gw) == ["base", "lora-3"])
    assert gw.post(COMPLETIONS.path, prompt("hello", "lora-3")).is_success


# L10


@contextmanager
def owned(
    gw: GatewayProcess, a: FakeBackend, b: FakeBackend, shared: str
) -> Iterator[tuple[str, str]]:
    """A prefix that first `a` and then `b` holds, and a further one that each of them holds."""
    ids = gw.backend_id(a.url), gw.backend_id(b.url)
    for own, other in (ids, ids[::-1]):
        gw.admin("POST", f"/backends/{other}/drain")
        assert gw.post(COMPLETIONS.path, prompt(shared)).is_success
        assert gw.post(COMPLETIONS.path, prompt(text(f"of {own}", 4000))).is_success
        gw.admin("POST", f"/backends/{other}/undrain")
    assert set(gw.explain(COMPLETIONS.path, prompt(shared)).blocks) == set(ids)
    yield ids
    found = gw.explain(COMPLETIONS.path, prompt(shared)).blocks
    assert set(found) == {ids[1]}
    assert not gw.explain(COMPLETIONS.path, prompt(text(f"of {ids[0]}", 4000))).blocks
    assert set(gw.explain(COMPLETIONS.path, prompt(text(f"of {ids[1]}", 4000))).blocks) == {ids[1]}
    answer = gw.post(COMPLETIONS.path, prompt(shared + "q"))
    assert answer.headers["x-prefixgate-backend"] == ids[1]
    assert answer.headers["x-prefixgate-decision"] == "prefix"


def restarts(gw: GatewayProcess) -> int:
    return gw.log.count("its prefixes are forgotten")


@pytest.mark.parametrize("how", ["start time", "counter"])
def test_L10_a_restart_that_no_probe_met(
    start_backend: StartBackend, gateway: StartGateway, how: str
) -> None:
    a, b = start_backend(), start_backend()

    def page(started: float, done: int) -> None:
        a.tells(started=started)
        if how == "counter":
            start = f"process_start_time_seconds {started}".encode()
            done_line = b'vllm:prompt_tokens_total{engine="0"} %d' % done
            a.pages["/metrics"] = a.pages["/metrics"].replace(start, done_line)

    page(1.7e9, 5000)
    gw = gateway([a, b], health={"interval": 600.0, "load_interval": 0.1})
    gw.settles(lambda m: m.total("prefixgate_backend_load_age_seconds") > 0)
    with owned(gw, a, b, text("X", 8000)):
        page(1.8e9, 100)
        gw.settles(lambda _: restarts(gw) == 1)
    page(1.8e9, 200)
    polls = len(a.probes)
    a.wait(lambda: len(a.probes) > polls + 3)
    assert restarts(gw) == 1


@pytest.mark.parametrize("tells", [True, False], ids=["is asked for its load", "is only probed"])
def test_L10_a_restart_in_which_connections_were_refused(
    start_backend: StartBackend, gateway: StartGateway, tells: bool
) -> None:
    a, b = start_backend(), start_backend()
    if tells:
        a.tells()
    often = {"interval": 600.0, "load_interval": 0.1} if tells else OFTEN
    gw = gateway([a, b], health=often)
    with owned(gw, a, b, text("X", 8000)) as (id, _):
        a.stop()
        gw.settles(
            lambda _: gw.admin("GET", f"/backends/{id}")["cause"].endswith("connection refused"),
            10.0,
        )
        again = start_backend(port=a.port)
        if tells:
            again.tells(started=1.8e9)
        gw.settles(lambda _: restarts(gw) == 1, 10.0)


def test_L10_a_flush_through_the_admin_api(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    a, b = start_backend(), start_backend()
    gw = gateway([a, b])
    with owned(gw, a, b, text("X", 8000)) as (id, _):
        gw.admin("POST", "/index/flush", {"backend": id})


# L16


def test_L16_all_down_for_long_and_then_up(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend() for _ in range(2)]
    gw = gateway(backends, health=OFTEN)
    assert gw.post(COMPLETIONS.path, prompt("before")).is_success
    for backend in backends:
        backend.stop()
    up(gw, 0)
    answer = gw.post(COMPLETIONS.path, prompt("meanwhile"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    time.sleep(10 * OFTEN["interval"])
    for backend in backends:
        start_backend(port=backend.port)
    up(gw, 2)
    before = gw.metrics()
    assert gw.post(COMPLETIONS.path, prompt("after")).status_code == 200
    assert gw.outcomes_since(before) == {"ok": 1}


@pytest.mark.parametrize("drop", [Cut.FIN, Cut.RST], ids=["fin", "rst"])
def test_L16_pooled_connections_dropped_while_nothing_happens(
    start_backend: StartBackend, gateway: StartGateway, drop: Cut
) -> None:
    backend = start_backend()
    gw = gateway([backend], health={"interval": 600.0})
    for number in range(5):
        assert gw.post(COMPLETIONS.path, prompt(f"{number}")).is_success
    backend.drop(drop)
    gw.settles(lambda _: not backend.connections)
    before = gw.metrics()
    assert gw.post(COMPLETIONS.path, prompt("after")).status_code == 200
    assert gw.outcomes_since(before) == {"ok": 1}


# and: addresses that can never serve


def test_a_backend_that_is_this_gateway_is_told_and_put_out(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    gw = gateway([start_backend()], health=OFTEN | {"unhealthy_after": 1})
    id = gw.admin("POST", "/backends", {"url": gw.url, "models": ["m"]})["id"]

    def view() -> Any:
        return gw.admin("GET", f"/backends/{id}")

    gw.settles(lambda _: bool(view()["state"] == "ejected"))
    assert view()["cause"] == "the address leads back to this gateway itself"
    other = gateway([], health=OFTEN)
    chained = other.admin("POST", "/backends", {"url": gw.url})["id"]
    up(other, 1)
    assert other.admin("GET", f"/backends/{chained}")["models"] == ["m"]
