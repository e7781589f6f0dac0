"""From start to stop: the access log, what is in the logs, and how running work ends."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import Answer, End
from tests.harness.routes import ALL, CHAT, EMBEDDINGS, MESSAGES, text

CANARY = "canary-7f3a"
ADDED = {
    "x-prefixgate-backend",
    "x-prefixgate-decision",
    "x-prefixgate-matched-tokens",
    "x-prefixgate-queue-ms",
}


# the end


def test_sigterm_lets_running_answers_finish(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    gw = gateway([backend])
    backend.rule = lambda request: None
    backend.next(itl=0.05, n_tokens=20)
    backend.next(ttft=0.6)
    stream, plain, idle = gw.client(), gw.client(), gw.client()
    assert idle.exchange("/live", method="GET").status == 200
    stream.request(CHAT.path, CHAT.stream())
    backend.wait_requests(1)
    plain.request(CHAT.path, CHAT.body(["hello"]))
    stream.events(1)
    backend.wait_requests(2)
    codes: list[int] = []
    stopping = threading.Thread(target=lambda: codes.append(gw.stop()))
    stopping.start()
    assert idle.closed_by_peer()
    with pytest.raises(ConnectionRefusedError):
        gw.client()
    answer = stream.answer()
    assert answer.end is End.FRAMED
    assert answer.stream.done
    assert len(answer.stream.text.split()) == 20
    last = plain.answer()
    assert (last.status, last.end) == (200, End.FRAMED)
    stopping.join(10.0)
    assert codes == [0]
    assert "Traceback" not in gw.log


def test_sigterm_refuses_what_waits_in_the_queue(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    """Another gateway can serve it sooner; what is under way here is finished."""
    backend = start_backend()
    gw = gateway([backend], scheduling={"decode": {"max_requests": 1}})
    backend.next(itl=0.05, n_tokens=30)
    first, second = gw.client(), gw.client()
    first.request(CHAT.path, CHAT.stream())
    first.events(1)
    second.request(CHAT.path, CHAT.stream())
    gw.settles(lambda metrics: metrics.total("prefixgate_queue_depth") == 1)
    stopping = threading.Thread(target=gw.stop)
    stopping.start()
    refused = second.answer()
    assert refused.status == 503
    assert b'"shutting_down"' in refused.body
    assert len(refused.all("retry-after")) == 1
    assert first.answer().stream.done
    stopping.join(10.0)
    assert not stopping.is_alive()


def test_sigint_ends_it_too(start_backend: StartBackend, gateway: StartGateway) -> None:
    gw = gateway([start_backend()])
    os.kill(gw.pid, signal.SIGINT)
    os.waitid(os.P_PID, gw.pid, os.WEXITED | os.WNOWAIT)
    assert gw.stop() == 130
    assert "Traceback" not in gw.log


# readiness


def test_ready_says_why_not(start_backend: StartBackend, gateway: StartGateway) -> None:
    gw = gateway([])
    assert gw.http.get("/live").status_code == 200
    answer = gw.http.get("/ready")
    assert (answer.status_code, answer.json()["status"]) == (503, "no backends")
    backend = start_backend()
    gw.admin("POST", "/backends", {"url": backend.url})
    gw.settles(lambda metrics: metrics.total("prefixgate_backend_up") == 1)
    answer = gw.http.get("/ready")
    assert (answer.status_code, answer.json()["models"]) == (200, ["m"])
    gw.admin("POST", f"/backends/{gw.backend_id(backend.url)}/drain")
    answer = gw.http.get("/ready")
    assert answer.status_code == 503
    assert answer.json()["status"] == "no backend can serve a model"


# the access log


def lines_of(path: Path, count: int) -> list[dict[str, Any]]:
    """The log's lines, once there are so many."""
    deadline = time.monotonic() + 10.0
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        if len(lines) >= count:
            return [json.loads(line) for line in lines]
        assert time.monotonic() < deadline, f"{len(lines)} lines in place of {count}"
        time.sleep(0.02)


def with_canaries(body: Any) -> Any:
    return json.loads(json.dumps(body).replace("@", f"{CANARY}-prompt"))


def test_one_line_a_request_and_no_secrets(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    """With everything that can go wrong logged as loudly as can be."""
    access = tmp_path / "access.jsonl"
    backend, dies = start_backend(), start_backend("dies")
    gw = gateway(
        [backend, dies],
        log={"access": str(access), "level": "debug"},
        admin={"token": f"{CANARY}-token"},
        breaker={"failures": 1000},
        timeouts={"first_byte": 0.5},
    )
    backend.behave(texts=(f"{CANARY}-answer",))
    sent: list[Answer] = []

    def send(path: str, body: Any, **options: Any) -> None:
        headers = [
            ("authorization", f"Bearer {CANARY}-key"),
            ("x-api-key", f"{CANARY}-key"),
            ("cookie", f"{CANARY}-cookie"),
        ]
        with gw.client() as client:
            sent.append(client.exchange(path, body, headers=headers, **options))

    for route in ALL:
        send(route.path, with_canaries(route.body(["@"])))
        if route.streams:
            send(route.path, with_canaries(route.stream(["@"])))
    send("/v1/other", with_canaries({"model": "m", "x": "@"}))
    send("/v1/files?key=" + CANARY, None, method="GET")
    send(CHAT.path, with_canaries({"model": "nobody", "messages": ["@"]}))
    send(CHAT.path, f'{{"model": "m", "messages": "{CANARY}-prompt'.encode())
    dies.stop()
    send(CHAT.path, with_canaries(CHAT.body(["@"]) | {"model": "dies"}))
    error = json.dumps({"error": {"message": f"{CANARY}-answer"}}).encode()
    backend.next(status=500, body=error)
    send(CHAT.path, with_canaries(CHAT.body(["@"])))
    backend.next(hang=True)
    send(CHAT.path, with_canaries(CHAT.body(["@"])))
    backend.next(script=(f"HTTP/1.1 banana {CANARY}\r\n\r\n".encode(),))
    send(CHAT.path, with_canaries(CHAT.body(["@"])))
    backend.next(texts=(f"{CANARY}-answer",) * 9, cut_after=3)
    send(CHAT.path, with_canaries(CHAT.stream(["@"])))

    statuses = [answer.status for answer in sent]
    assert {200, 400, 404, 500, 502, 504} <= set(statuses)
    lines = lines_of(access, len(sent))
    assert gw.stop() == 0
    lines = lines_of(access, len(sent))
    assert [line["status"] for line in lines] == statuses
    assert len({line["id"] for line in lines}) == len(sent)
    assert {line["outcome"] for line in lines} == {
        *("ok", "client_error", "upstream_error", "timeout")
    }
    assert CANARY not in access.read_text()
    assert CANARY not in gw.log
    assert "DEBUG" in gw.log


def test_a_client_that_leaves_has_a_line_too(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    access = tmp_path / "access.jsonl"
    backend = start_backend()
    gw = gateway([backend], log={"access": str(access)})
    backend.behave(hang=True)
    client = gw.client()
    client.request(CHAT.path, CHAT.stream())
    backend.wait_requests(1)
    client.close()
    [line] = lines_of(access, 1)
    assert (line["outcome"], line["disconnect_phase"]) == ("cancelled", "answer")


def test_what_waits_to_be_written_is_written_at_the_end(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    access = tmp_path / "access.jsonl"
    gw = gateway([start_backend()], log={"access": str(access)})
    with gw.client() as client:
        for _ in range(50):
            client.exchange(EMBEDDINGS.path, EMBEDDINGS.body(["hello"]))
    assert gw.stop() == 0
    assert len(access.read_text().splitlines()) == 50


def test_the_access_log_survives_rotation(
    start_backend: StartBackend, gateway: StartGateway, tmp_path: Path
) -> None:
    access, rotated = tmp_path / "access.jsonl", tmp_path / "access.jsonl.1"
    gw = gateway([start_backend()], log={"access": str(access)})
    gw.post(CHAT.path, CHAT.body(["hello"]))
    lines_of(access, 1)
    access.rename(rotated)
    os.kill(gw.pid, signal.SIGHUP)
    deadline = time.monotonic() + 10.0
    while not access.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    gw.post(CHAT.path, CHAT.body(["hello"]))
    assert len(lines_of(access, 1)) == 1
    assert len(rotated.read_text().splitlines()) == 1


# the headers that are added


def headers_of(gw: GatewayProcess, path: str, body: Any) -> set[str]:
    with gw.client() as client:
        return {name for name, _ in client.exchange(path, body).headers}


def test_response_headers_off_removes_exactly_four(
    start_backend: StartBackend, gateway: StartGateway
) -> None:
    backend = start_backend()
    on = gateway([backend])
    off = gateway([backend], server={"response_headers": False})
    bodies = (
        (CHAT.path, CHAT.body([text("headers", 3000)])),
        (CHAT.path, CHAT.stream([text("headers", 3000)])),
        (MESSAGES.path, MESSAGES.stream()),
        (EMBEDDINGS.path, EMBEDDINGS.body(["hello"])),
        ("/v1/other", {"model": "m"}),
    )
    for path, body in bodies:
        with_them = headers_of(on, path, body)
        assert with_them >= ADDED | {"x-request-id"}
        assert with_them - headers_of(off, path, body) == ADDED
    # A request that was never routed has none of them either way.
    unknown = {"model": "nobody", "messages": []}
    assert headers_of(on, CHAT.path, unknown) == headers_of(off, CHAT.path, unknown)
