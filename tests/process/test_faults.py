"""Faults of single backends and requests that must not become everybody's."""

from __future__ import annotations

import os
import signal
import threading
import time

from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import Behaviour
from tests.harness.routes import CHAT
from tests.process.full_listener import FullListener

SLOW_PROBES = {"interval": 600.0}


def test_a_request_that_fails_everywhere_puts_nobody_out(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend() for _ in range(3)]
    for backend in backends:
        backend.behave(status=500)
    gw = gateway(backends, health=SLOW_PROBES)
    for _ in range(12):
        assert gw.post(CHAT.path, CHAT.body(["poison"])).status_code == 500
    assert {backend["state"] for backend in gw.admin("GET", "/backends")} == {"healthy"}
    for backend in backends:
        backend.behave(status=200)
    assert gw.post(CHAT.path, CHAT.body(["good"])).status_code == 200


def test_a_backend_that_fails_what_others_serve_is_put_out(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    bad, good = start_backend(), start_backend()
    bad.behave(status=500)
    gw = gateway([bad, good], health=SLOW_PROBES, policy={"name": "round_robin"})
    for _ in range(12):
        assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
    states = {backend["id"]: backend["state"] for backend in gw.admin("GET", "/backends")}
    assert states[gw.backend_id(good.url)] == "healthy"
    # Its breaker may have let it in again, on trial.
    assert gw.metrics().total("prefixgate_backend_ejections_total") >= 1


def test_a_retry_never_waits_while_others_could_go(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    busy, refusing = start_backend(), start_backend()
    gw = gateway(
        [busy, refusing],
        scheduling={"decode": {"max_requests": 1}},
        policy={"name": "round_robin"},
    )
    for backend in (busy, refusing):
        backend.behave(ttft=30.0)
    holder = gw.client()
    holder.request(CHAT.path, CHAT.stream())
    gw.settles(lambda _: bool(busy.requests or refusing.requests))
    taken, free = (busy, refusing) if busy.requests else (refusing, busy)
    free.behave(status=503)
    before = time.monotonic()
    assert gw.post(CHAT.path, CHAT.body(["refused"])).status_code == 503
    free.behave(status=200)
    assert gw.post(CHAT.path, CHAT.body(["served"])).status_code == 200
    # The other backend is taken for half a minute.
    assert time.monotonic() - before < 15.0
    assert len(taken.requests) == 1


def test_limits_go_on_at_a_backend_that_is_removed(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    backend.behave(ttft=60.0)
    gw = gateway([backend], timeouts={"first_byte": 1.5})
    client = gw.client()
    client.request(CHAT.path, CHAT.body(["hello"]))
    gw.settles(lambda metrics: metrics.total("prefixgate_in_flight") == 1)
    gw.admin("DELETE", f"/backends/{gw.backend_id(backend.url)}")
    assert client.answer().status == 504


def test_a_second_signal_ends_it_now(start_backend: StartBackend, gateway: StartGateway) -> None:
    backend = start_backend()
    backend.behave(itl=0.05, n_tokens=10_000)
    gw = gateway([backend])
    client = gw.client()
    client.request(CHAT.path, CHAT.stream())
    client.events(1)
    os.kill(gw.pid, signal.SIGTERM)
    time.sleep(0.5)
    gw.stop()  # signals again; the harness would not wait for the limit of a minute


def test_leaving_after_a_refusal_disturbs_nobody(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """The refusal's connection may carry another answer when the client who was refused leaves."""
    refusing, serving = start_backend(), start_backend()
    refusing.rule = lambda request: (
        Behaviour(status=429) if b"refuse" in request.body else Behaviour(itl=0.001, n_tokens=20)
    )
    serving.behave(itl=0.001, n_tokens=20)
    gw = gateway(
        [refusing, serving],
        policy={"name": "round_robin"},
        retries={"budget": 1.0},
        timeouts={"first_byte": 5.0, "idle": 5.0},
    )
    stopping = threading.Event()

    def leave_often() -> None:
        number = 0
        while not stopping.is_set():
            number += 1
            client = gw.client()
            client.request(CHAT.path, CHAT.stream(["refuse"]))
            time.sleep(number % 20 * 0.0001)
            client.reset()

    leavers = [threading.Thread(target=leave_often) for _ in range(3)]
    for leaver in leavers:
        leaver.start()
    try:
        with gw.client(timeout=10.0) as client:
            for _ in range(100):
                assert client.exchange(CHAT.path, CHAT.stream()).stream.done
    finally:
        stopping.set()
        for leaver in leavers:
            leaver.join()
    gw.settles_idle()


def test_a_backend_that_got_the_end_of_a_requests_time_is_not_to_blame(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Whoever waits long here leaves the backend no time in which it could have answered."""
    backend = start_backend()
    one = {"max_requests": 1}
    gw = gateway(
        [backend],
        scheduling={"decode": one, "prefill": one},
        timeouts={"total": 2.0},
        breaker={"failures": 1},
        health=SLOW_PROBES,
    )
    backend.behave(ttft=1.5)
    with gw.client() as first, gw.client() as second:
        first.request(CHAT.path, CHAT.body(["first"]))
        backend.wait_requests(1)
        second.request(CHAT.path, CHAT.body(["second"]))
        assert (first.answer().status, second.answer().status) == (200, 504)
    assert gw.metrics().total("prefixgate_upstream_errors_total", kind="total_timeout") == 1
    assert gw.metrics().total("prefixgate_backend_breaker_failures") == 0


def test_a_backend_that_nothing_was_sent_to_is_not_to_blame(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Connecting to another one took all of the request's time."""
    good, full = start_backend(), start_backend()
    gw = gateway(
        [good, full],
        entry={"models": ["m"]},
        policy={"name": "round_robin"},
        timeouts={"total": 1.0},
        health={"probes": False},
    )
    full.stop()
    with FullListener(full.port):
        statuses = {gw.post(CHAT.path, CHAT.body(["hello"])).status_code for _ in range(2)}
    assert statuses == {200, 504}
    failures = gw.metrics().by("prefixgate_upstream_errors_total", "kind")
    assert failures == {"total_timeout": 1}
    blamed = gw.metrics().by("prefixgate_backend_breaker_failures", "backend")
    assert blamed == {gw.backend_id(full.url): 1}
