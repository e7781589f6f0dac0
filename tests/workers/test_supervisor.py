"""How a gateway of several workers starts and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.secrets import hash_key
from gateway.sockets import CannotListen, listen, listen_for_each
from gateway.workers.supervisor import Supervisor
from loadtests.redis.server import RedisServer
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import ROOT, free_port
from tests.harness.raw import End, RawClient
from tests.harness.routes import CHAT
from tests.workers.gateway import Crowd, Workers, alive


@pytest.fixture(scope="module")
def settings(shared_backend: FakeBackend) -> Iterator[dict[str, Any]]:
    with RedisServer() as redis:
        yield {"backends": [{"url": shared_backend.url}], "redis": {"url": redis.url}}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gateway.cli", "serve", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )


def test_without_redis_it_says_why_not() -> None:
    ended = run("--port", "0", "--workers", "2")
    assert ended.returncode == 2
    assert "redis.url" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("count", ["0", "-1", "two", "129"])
def test_a_number_that_is_none(count: str) -> None:
    ended = run("--workers", count)
    assert ended.returncode == 2
    assert f"{count!r} is no number from 1 to 128" in ended.stderr


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("redis: {url: redis://127.0.0.1:1}")
    with socket.socket() as taken:
        # Even by one that would share it.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = run("--config", str(config), "--port", port, "--workers", "2")
    assert ended.returncode == 3
    assert f"cannot listen on 127.0.0.1 port {port}" in ended.stderr


def test_a_free_port_is_the_same_for_all() -> None:
    each = listen_for_each(3, "localhost", 0, "server.port")
    ports = {sock.getsockname()[1] for place in each for sock in place}
    assert len(ports) == 1
    with pytest.raises(CannotListen):
        listen("localhost", ports.pop(), "server.port")
    for place in each:
        for sock in place:
            sock.close()


def test_a_worker_that_cannot_start_ends_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["serve", "--config", str(tmp_path / "gone.yaml")]
    supervisor = Supervisor(words, listen_for_each(2, "127.0.0.1", 0, "server.port"), [])
    assert asyncio.run(supervisor.run()) == 2
    assert "gone.yaml" in capfd.readouterr().err


def test_a_stop_lets_streams_end_and_leaves_nothing(
    settings: dict[str, Any], backend: FakeBackend, tmp_path: Path
) -> None:
    workers = Workers(2, settings, tmp_path)
    pids = list(workers.pids.values())
    backend.behave(itl=0.05, n_tokens=15)
    clients = [RawClient(workers.gw.port) for _ in range(6)]
    for client in clients:
        client.request(CHAT.path, CHAT.stream())
    for client in clients:
        client.events(1)
    # As a terminal or a service manager does: every process gets it, and that is one signal.
    for pid in (*pids, workers.gw.pid):
        os.kill(pid, signal.SIGTERM)
    answers = [client.answer() for client in clients]
    assert all(answer.end is not End.BROKEN and answer.stream.done for answer in answers)
    assert workers.gw.ended() == 0
    assert not any(map(alive, pids))
    with pytest.raises(ConnectionRefusedError):
        RawClient(workers.gw.port)


def test_a_second_signal_cuts_short(
    settings: dict[str, Any], backend: FakeBackend, tmp_path: Path
) -> None:
    workers = Workers(2, settings, tmp_path)
    backend.behave(itl=0.05, n_tokens=10_000)
    with RawClient(workers.gw.port) as client:
        client.request(CHAT.path, CHAT.stream())
        client.events(1)
        workers.gw.signal(signal.SIGTERM)
        workers.wait_for("it stops", lambda: workers.gw.log.count("stopping: not ready") == 2)
        workers.gw.signal(signal.SIGTERM)
        assert workers.gw.ended() == 143
        assert b"shutting_down" in client.answer().body


def test_no_worker_outlives_the_supervisor(
    settings: dict[str, Any], backend: FakeBackend, tmp_path: Path
) -> None:
    workers = Workers(2, settings, tmp_path)
    pids = list(workers.pids.values())
    Crowd(workers.gw.port).ask(10)
    workers.gw.signal(signal.SIGKILL)
    workers.wait_for("all are gone", lambda: not any(map(alive, pids)), timeout=10.0)
    for sock in listen("127.0.0.1", workers.gw.port, "the port is free again"):
        sock.close()


@pytest.mark.parametrize(("without_redis", "let_in"), [("share", 4), ("full", 8)])
def test_workers_divide_limits_also_where_redis_was_never_there(
    backend: FakeBackend, tmp_path: Path, without_redis: str, let_in: int
) -> None:
    limits = {"requests_per_minute": 4}
    key = {"name": "a", "hash": hash_key("a client's key"), "limits": limits}
    settings = {
        "backends": [{"url": backend.url}],
        "redis": {"url": f"redis://127.0.0.1:{free_port()}"},
        "auth": {"enabled": True, "keys": [key], "without_redis": without_redis},
    }
    workers = Workers(2, settings, tmp_path)
    statuses = []
    for _ in range(40):
        with RawClient(workers.gw.port) as client:
            headers = [("authorization", "Bearer a client's key")]
            client.request(CHAT.path, CHAT.body(["hello"]), headers=headers)
            statuses.append(client.answer().status)
    workers.gw.stop()
    assert set(statuses) == {200, 429}
    assert statuses.count(200) == let_in
