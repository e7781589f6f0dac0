from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from loadtests.real_engines.handover.tap import Tap
from tests.harness.fake_backend import FakeBackend
from tests.harness.routes import CHAT

PATIENCE = 30.0


@pytest.fixture
def engine() -> Iterator[FakeBackend]:
    with FakeBackend("m") as running:
        yield running


@pytest.fixture
def tap(engine: FakeBackend) -> Iterator[Tap]:
    with Tap("127.0.0.1", engine.port) as running:
        yield running


def post(tap: Tap) -> socket.socket:
    port = httpx.URL(tap.url).port
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
    return client


def test_what_comes_goes_through(tap: Tap, engine: FakeBackend) -> None:
    expected = tap.expect()
    assert httpx.get(f"{tap.url}/v1/models").status_code == 200
    assert not expected.seen.is_set()
    answer = httpx.post(f"{tap.url}{CHAT.path}", json=CHAT.body(["x"]))
    assert answer.json()["choices"]
    assert expected.seen.is_set()


def test_one_request_is_held_back_and_the_next_is_not(tap: Tap, engine: FakeBackend) -> None:
    expected = tap.expect(hold=True)
    client = post(tap)
    assert expected.seen.wait(PATIENCE)
    answer = httpx.post(f"{tap.url}{CHAT.path}", json=CHAT.body(["x"]))
    assert answer.status_code == 200
    assert not expected.closed.is_set()
    client.close()
    assert expected.closed.wait(PATIENCE)
    assert [each.path for each in engine.requests if each.method == "POST"] == [CHAT.path]


def test_a_dead_engine_answers_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with Tap("127.0.0.1", port) as tap, pytest.raises(httpx.HTTPError):
        httpx.get(tap.url, timeout=PATIENCE)
