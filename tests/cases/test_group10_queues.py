"""Group 10: queues, priority and fairness. A limit is a limit, and who waits is accounted for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import Answer, RawClient
from tests.harness.recorded import Recorded
from tests.harness.routes import CHAT, Json, text

LONG, SHORT = "prefill", "decode"


def limits(**decode: Any) -> Json:
    """One request at a time, and what else is said of the decode class."""
    return {"decode": {"max_requests": 1, **decode}}


@contextmanager
def asking(gw: GatewayProcess, *headers: dict[str, str]) -> Iterator[list[RawClient]]:
    """Streams, asked for one after the other."""
    with ExitStack() as stack:
        clients = [stack.enter_context(gw.client()) for _ in headers]
        for client, each in zip(clients, headers, strict=True):
            client.request(CHAT.path, CHAT.stream(), headers=list(each.items()))
        yield clients


def waits(gw: GatewayProcess, count: int) -> None:
    gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == count)


def refusal(answer: Answer) -> tuple[int, str]:
    assert int(answer.header("retry-after") or 0) >= 1
    return answer.status, answer.json["error"]["code"]


class Peak:
    """The most requests that a backend has had at once."""

    def __init__(self, backend: FakeBackend) -> None:
        self.most = 0
        self._backend = backend
        backend.rule = self._arrived

    def _arrived(self, request: Recorded) -> None:
        open = [r for r in self._backend.requests if not r.complete and r.closed is None]
        self.most = max(self.most, len(open))


# Q01


def test_Q01_a_limit_holds_for_the_whole_response(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    peak = Peak(backend)
    gw = gateway([backend], scheduling=limits())
    backend.behave(itl=0.1, n_tokens=20)
    with asking(gw, {}) as [first]:
        first.events(2)
        with asking(gw, {}, {}) as later:
            waits(gw, 2)
            assert first.answer().stream.done
            for client in later:
                assert client.answer().stream.done
    assert (len(backend.requests), peak.most) == (3, 1)
    gw.settles_idle()


# Q02


def test_Q02_expired_waiters_leave_the_queue(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], scheduling=limits(max_waiting=5, max_wait=1.0))
    backend.behave(ttft=30.0)
    with asking(gw, {}):
        backend.wait_requests(1)
        with asking(gw, *[{}] * 5) as expiring:
            waits(gw, 5)
            assert {refusal(client.answer()) for client in expiring} == {(503, "expired")}
        waits(gw, 0)
        with asking(gw, *[{}] * 5) as queued:
            waits(gw, 5)
            assert {refusal(client.answer()) for client in queued} == {(503, "expired")}
        waits(gw, 0)


# Q04


def test_Q04_late_is_late_even_when_a_slot_came_free(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], scheduling=limits())
    backend.next(ttft=1.0)
    with asking(gw, {}) as [running]:
        backend.wait_requests(1)
        with asking(gw, {"x-prefixgate-max-wait-ms": "700"}, {}) as [late, patient]:
            waits(gw, 2)
            # The whole process stands still while the wait ends and then the slot comes free.
            os.kill(gw.pid, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(gw.pid, signal.SIGCONT)
            assert refusal(late.answer()) == (503, "expired")
            assert patient.answer().stream.done
        assert running.answer().stream.done
    assert len(backend.requests) == 2


# Q05


def test_Q05_the_bound_counts_all_waiters(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], scheduling=limits(max_waiting=10))
    backend.behave(ttft=30.0)
    with asking(gw, *[{}] * 100) as clients:
        gw.settles(
            lambda metrics: (
                metrics.total("prefixgate_queue_refusals_total", reason="queue_full") == 89
            )
        )
        waits(gw, 10)
        assert len(backend.wait_requests(1)) == 1
        refused = [client for client in clients if client.has_answer()]
        assert len(refused) == 89
        assert {refusal(client.answer()) for client in refused} == {(429, "queue_full")}


# Q07


def test_Q07_who_waits_long_stays_what_it_is(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], scheduling=limits())
    low, high = {"x-prefixgate-priority": "low"}, {"x-prefixgate-priority": "high"}
    backend.next(until=(ends := threading.Event()))
    with asking(gw, high) as [running]:
        backend.wait_requests(1)
        with asking(gw, *[low] * 3, *[high] * 3) as waiting:
            waits(gw, 6)
            ends.set()
            [running.answer()]
            for client in waiting:
                assert client.answer().stream.done
    metrics = gw.settles_idle()
    counted = metrics.by("prefixgate_queue_wait_seconds_count", "priority")
    assert counted == {"low": 3, "high": 4}
    # Pressure is gone, and the order is the plain one again.
    backend.requests.clear()
    backend.next(until=(ends := threading.Event()))
    with asking(gw, high) as [running]:
        backend.wait_requests(1)
        with asking(gw, low | {"x-place": "second"}) as [second]:
            waits(gw, 1)
            with asking(gw, high | {"x-place": "first"}) as [first]:
                waits(gw, 2)
                ends.set()
                for client in (running, first, second):
                    assert client.answer().stream.done
    places = [request.header(b"x-place") for request in backend.requests]
    assert places == [None, b"first", b"second"]


# Q08


@pytest.fixture(scope="module")
def patient(module_gateway: StartGateway) -> Iterator[GatewayProcess]:
    """A gateway whose one slot is taken; others wait for at most 1 s."""
    with FakeBackend() as backend:
        backend.behave(ttft=60.0)
        gw = module_gateway([backend], scheduling=limits(max_wait=1.0))
        with asking(gw, {}):
            backend.wait_requests(1)
            yield gw


@pytest.mark.parametrize(("asked", "within"), [("100", 0.9), ("30000", 5.0), ("0", 0.9)])
def test_Q08_a_client_can_only_shorten_its_wait(
    patient: GatewayProcess, asked: str, within: float
) -> None:
    started = time.monotonic()
    with asking(patient, {"x-prefixgate-max-wait-ms": asked}) as [client]:
        assert refusal(client.answer())[0] in (429, 503)
    took = time.monotonic() - started
    # Its own limit or the class's, whichever is less.
    assert min(int(asked) / 1000, 1.0) <= took + 0.01
    assert took < within


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-prefixgate-max-wait-ms", "-1"),
        ("x-prefixgate-max-wait-ms", "abc"),
        ("x-prefixgate-max-wait-ms", "1.5"),
        ("x-prefixgate-ttft-ms", "0"),
        ("x-prefixgate-ttft-ms", "1" * 400),
        ("x-prefixgate-priority", "urgent"),
    ],
)
def test_Q08_junk_is_refused(patient: GatewayProcess, header: str, value: str) -> None:
    with asking(patient, {header: value}) as [client]:
        answer = client.answer()
    assert answer.status == 400
    error = answer.json["error"]
    assert (error["param"], error["code"]) == (header, "invalid_header")
    assert len(error["message"]) < 300


# Q10


def test_Q10_who_is_who_is_not_the_clients_word(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend], scheduling=limits())
    one, two = {"authorization": "Bearer one"}, {"x-api-key": "two"}
    backend.next(ttft=1.0)
    # As many tokens as are expected: what is served counts.
    backend.behave(n_tokens=300)
    with asking(gw, {}) as [running]:
        backend.wait_requests(1)
        many = [one | {"x-team": f"invented {number}"} for number in range(20)]
        with asking(gw, *many) as flood:
            waits(gw, 20)
            with asking(gw, two | {"x-mine": "1"}) as [other]:
                waits(gw, 21)
                assert gw.metrics().total("prefixgate_queue_tenants", model="m") == 2
                for client in (running, other, *flood):
                    assert client.answer().stream.done
    order = [request.header(b"x-mine") for request in backend.requests]
    # After the one that ran and one of the flood, not after all of it.
    assert order.index(b"1") <= 2


def test_Q10_keys_are_neither_shown_nor_logged(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Any
) -> None:
    path = tmp_path / "access.jsonl"
    gw = gateway([start_backend()], log={"access": str(path), "level": "debug"})
    key = "sk-very-secret"
    answer = gw.post(CHAT.path, CHAT.body(["hello"]), authorization=f"Bearer {key}")
    assert answer.status_code == 200
    asked = {"path": CHAT.path, "body": CHAT.body(["x"])}
    shown = [
        gw.admin("POST", "/explain", asked | {"headers": {name: value}})
        for name, value in (("authorization", f"Bearer {key}"), ("x-api-key", key))
    ]
    assert shown[0]["tenant"] == shown[1]["tenant"] is not None
    page = gw.http.get("/metrics").text
    gw.stop()
    assert key not in f"{shown} {page} {gw.log} {path.read_text()}"
    assert shown[0]["tenant"] in path.read_text()


# Q14


def test_Q14_choosing_and_reserving_is_one_step(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backends = [start_backend(), start_backend()]
    peaks = [Peak(backend) for backend in backends]
    gw = gateway(backends, scheduling=limits())
    together = threading.Barrier(2)

    def ask() -> None:
        with gw.client() as client:
            for _ in range(50):
                together.wait(20.0)
                assert client.exchange(CHAT.path, CHAT.stream()).stream.done

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(len(backend.requests) for backend in backends) == 100
    assert [peak.most for peak in peaks] == [1, 1]


# Q16


def test_Q16_the_class_is_computed_from_the_whole_prompt(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    gw = gateway([start_backend()])
    history = [text("question", 10_000), text("answer", 10_000), "and?"]
    tool = {"type": "function", "function": {"name": "f", "description": text("tool", 20_000)}}
    image = {"type": "image_url", "image_url": {"url": "data:," + "A" * 20_000}}

    def class_of(body: Json) -> str:
        answer = gw.admin("POST", "/explain", {"path": CHAT.path, "body": body})
        return str(answer["work_class"])

    assert class_of(CHAT.body(history)) == LONG
    assert class_of(CHAT.body(["hello"])) == SHORT
    assert class_of(CHAT.body(["hello"]) | {"tools": [tool]}) == LONG
    system = {"role": "system", "content": text("system", 20_000)}
    question = {"role": "user", "content": "why?"}
    assert class_of({"model": "m", "messages": [system, question]}) == LONG
    # A picture is not as many tokens as its base64 has bytes.
    seen = {"role": "user", "content": [{"type": "text", "text": "what is it?"}, image]}
    assert class_of({"model": "m", "messages": [seen]}) == SHORT
