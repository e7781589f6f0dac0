"""Group 15, V08: one expensive request does not freeze the others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT, Json, text

TINY_P99 = 0.3
SECONDS = 5.0
EACH = 0.02
"""Between two tiny requests."""


def chat(content: str) -> Json:
    return {"model": "big", "messages": [{"role": "user", "content": content}]}


def large(name: str, size: int) -> bytes:
    page = text(name, 50_000)
    return json.dumps(chat(page * (size // len(page)))).encode()


def many_messages() -> bytes:
    messages = [{"role": "user", "content": f"message {number}"} for number in range(200_000)]
    return json.dumps({"model": "big", "messages": messages}).encode()


HEAVY: dict[str, Callable[[], bytes]] = {
    **{f"5 MB, {number}": partial(large, f"{number}", 5_000_000) for number in range(8)},
    "30 MB": partial(large, "thirty", 30_000_000),
    "escapes": lambda: json.dumps(chat('"\n' * 5_000_000)).encode(),
    "200,000 messages": many_messages,
    "brackets": lambda: json.dumps(chat("[" * 5_000_000)).encode(),
}


@pytest.fixture
def gw(start_backend: StartBackend, gateway: StartGateway) -> GatewayProcess:
    # Nothing is held or refused for being much: all of it is to be taken at once.
    return gateway([start_backend("m"), start_backend("big")], scheduling={"gate": None})


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[int(share * (len(times) - 1))]


def test_V08_tiny_requests_stay_quick_beside_huge_ones(gw: GatewayProcess) -> None:
    bodies = [make() for make in HEAVY.values()]
    started = threading.Event()
    wrong: list[object] = []

    def send(body: bytes) -> None:
        started.wait()
        with gw.client(timeout=60.0) as client:
            status = client.exchange(CHAT.path, body).status
            if status != 200:
                wrong.append(status)

    threads = [threading.Thread(target=send, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    tiny = json.dumps(CHAT.body(["hello"])).encode()
    chats: list[float] = []
    pages: list[float] = []
    with gw.client() as client, gw.client() as prober:
        started.set()
        begin = time.monotonic()
        for turn in range(int(SECONDS / EACH)):
            time.sleep(max(0.0, begin + turn * EACH - time.monotonic()))
            at = time.monotonic()
            assert client.exchange(CHAT.path, tiny).status == 200
            chats.append(time.monotonic() - at)
            at = time.monotonic()
            assert prober.exchange("/health", method="GET").status == 200
            pages.append(time.monotonic() - at)
    for thread in threads:
        thread.join()
    assert wrong == []
    assert percentile(chats, 0.99) < TINY_P99
    assert percentile(pages, 0.99) < TINY_P99


@pytest.mark.parametrize("where", ["messages", "metadata"])
def test_V08_deep_nesting_is_refused(gw: GatewayProcess, where: str) -> None:
    deep = b"[" * 10_000 + b"]" * 10_000
    body = b'{"model":"m","%b":%b}' % (where.encode(), deep)
    answer = gw.post(CHAT.path, body)
    assert answer.status_code == 400
    assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
    with RawClient(gw.port) as client:
        assert client.exchange(CHAT.path, b"[" * 5_000_000).status == 400
