"""Long requests hold the event loop up for a moment only, and many requests leave no trace."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config import BackendConfig, Settings
from gateway.http.dialects.registry import dialect_for
from gateway.http.headers import read_request
from tests.conftest import StartBackend, StartGateway
from tests.harness.gateway_process import ROOT, GatewayProcess
from tests.harness.routes import CHAT, COMPLETIONS, MESSAGES, Json, text

SIZE = 400_000
"""Bytes, about, of each long body."""
REPEATS = 7
SLOWER = 8.0
"""Times what `json.loads` takes for the same body. Measured: 1.2 to 1.9, of at most 3 ms. Anything
quadratic in the body, its messages or its blocks is far beyond."""

ODD = '你好é🌍\n"\\\t abc'
SYSTEM = {"role": "system", "content": text("system", 2000)}


def words(rng: random.Random, size: int, alphabet: str = "etaoin shrdlu") -> str:
    return "".join(rng.choices(alphabet, k=size))


def chat(*messages: Json, **members: Any) -> Json:
    return {"model": "m", "messages": [SYSTEM, *messages], **members}


def one_text(rng: random.Random) -> bytes:
    return json.dumps(chat({"role": "user", "content": words(rng, SIZE)})).encode()


def escapes(rng: random.Random) -> bytes:
    content = words(rng, SIZE // 4, ODD)
    return json.dumps(chat({"role": "user", "content": content})).encode()


def not_ascii(rng: random.Random) -> bytes:
    content = words(rng, SIZE // 2, ODD)
    return json.dumps(chat({"role": "user", "content": content}), ensure_ascii=False).encode()


def small_messages(rng: random.Random) -> bytes:
    roles = ("user", "assistant")
    messages = [
        {"role": roles[number % 2], "content": words(rng, 40)} for number in range(SIZE // 85)
    ]
    return json.dumps(chat(*messages)).encode()


def tool_calls(rng: random.Random) -> bytes:
    messages: list[Json] = []
    for number in range(SIZE // 270):
        function = {"name": "look_up", "arguments": json.dumps({"query": words(rng, 20)})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": words(rng, 60)},
        ]
    return json.dumps(chat(*messages)).encode()


def content_parts(rng: random.Random) -> bytes:
    parts = [{"type": "text", "text": words(rng, 40)} for _ in range(SIZE // 75)]
    messages = [{"role": "user", "content": parts}]
    return json.dumps({"model": "m", "max_tokens": 9, "messages": messages}).encode()


def token_ids(rng: random.Random) -> bytes:
    ids = [rng.randrange(100_000) for _ in range(SIZE // 7)]
    return json.dumps({"model": "m", "prompt": ids}).encode()


BODIES: tuple[tuple[str, Callable[[random.Random], bytes]], ...] = (
    (CHAT.path, one_text),
    (CHAT.path, escapes),
    (CHAT.path, not_ascii),
    (CHAT.path, small_messages),
    (CHAT.path, tool_calls),
    (MESSAGES.path, content_parts),
    (COMPLETIONS.path, token_ids),
)


def cpu_seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


@pytest.mark.parametrize(("path", "make"), BODIES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_long_request_takes_little_of_the_event_loops_time(
    path: str, make: Callable[[random.Random], bytes]
) -> None:
    """All that is done on the loop and grows with the body, but for handing its bytes on.

    The least of some repeats is compared with the least of another: both run on the same machine
    in the same moments, so how fast or busy it is does not matter.
    """
    backends = [BackendConfig(url=f"http://127.0.0.1:{port}", models=["m"]) for port in (1, 2)]
    gateway = Gateway(Settings(backends=backends))
    chosen = next(iter(gateway.fleet)).id
    dialect = dialect_for("POST", path)
    headers = read_request([(b"content-type", b"application/json")])
    rng = random.Random(1)
    ours, plain = [], []
    for _ in range(REPEATS):
        body = make(rng)
        assert 0.4 * SIZE < len(body) < 1.6 * SIZE

        def stations(body: bytes = body) -> None:
            request = gateway.facts.read(dialect, headers, body).request
            assert request.chain
            gateway.index.confirm(gateway.index.book(chosen, request.chain))

        ours.append(cpu_seconds(stations))
        plain.append(cpu_seconds(lambda body=body: json.loads(body)))
        # Once more, now that all of it is known.
        ours.append(cpu_seconds(stations))
    print(f"{make.__name__}: {min(ours) * 1e3:.2f} ms, json.loads {min(plain) * 1e3:.2f} ms")
    assert max(min(ours[::2]), min(ours[1::2])) < SLOWER * min(plain)


# memory

WARM_UP = 70_000
REQUESTS = 100_000
CONNECTIONS = 16
BATCH = 25
"""Requests sent on a connection before their answers are read."""
MEGABYTE = 1 << 20


@pytest.fixture
def quick_engine() -> Iterator[str]:
    """Its URL."""
    command = [sys.executable, "-m", "tests.process.quick_engine"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.communicate("")


class Load:
    """Sends requests, pipelined on many connections, which it renews as it goes on.

    Half of the prompts are new each time, the others begin alike.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._sockets: list[socket.socket] = []
        self.sent = 0

    def send(self, count: int) -> None:
        while count > 0:
            for old in self._sockets[: CONNECTIONS // 4]:
                old.close()
            del self._sockets[: CONNECTIONS // 4]
            while len(self._sockets) < CONNECTIONS:
                self._sockets.append(socket.create_connection(("127.0.0.1", self._port), 20))
            for _ in range(5):
                for connection in self._sockets:
                    connection.sendall(b"".join(self._request() for _ in range(BATCH)))
                for connection in self._sockets:
                    self._read(connection)
                count -= BATCH * CONNECTIONS

    def _request(self) -> bytes:
        self.sent += 1
        beginning = "shared" if self.sent % 2 else f"{self.sent:032}"
        body = b'{"model":"m","prompt":"%b"}' % f"{beginning}{self.sent:0800}".encode()
        return (
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"x-request-id: %d\r\ncontent-length: %d\r\n\r\n%b" % (self.sent, len(body), body)
        )

    def _read(self, connection: socket.socket) -> None:
        """The answers to one batch."""
        head, tail = b"HTTP/1.1 200 ", b'"cached_tokens": 0}}}'
        got = b""
        while got.count(tail) < BATCH:
            data = connection.recv(1 << 18)
            assert data, "the connection was closed"
            got += data
        assert got.count(head) == BATCH
        assert got.endswith(tail)


def test_many_requests_leave_memory_flat(quick_engine: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "backends": [{"url": quick_engine}],
        "index": {"max_blocks": 1000},
        "log": {"access": str(tmp_path / "access.jsonl")},
    }
    with GatewayProcess(settings, tmp_path) as gw:
        load = Load(gw.port)
        load.send(WARM_UP)
        before = gw.rss()
        load.send(REQUESTS - WARM_UP)
        grown = gw.rss() - before
        print(f"{load.sent} requests: {before / MEGABYTE:.1f} MB, then {grown / MEGABYTE:+.1f} MB")
        assert gw.settles_idle().outcomes == {"ok": load.sent}
        assert gw.metrics().total("prefixgate_index_blocks") <= 1000
        assert gw.metrics().total("prefixgate_index_evicted_blocks_total") > 10_000
    assert grown < 4 * MEGABYTE


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_long_bodies_are_given_back_with_their_requests(
    start_backend: StartBackend, gateway: StartGateway, stream: bool
) -> None:
    """And do not wait for a garbage collector that seldom looks."""
    backend = start_backend()
    gw = gateway([backend], index={"max_blocks": 1000})

    def send(count: int) -> int:
        for number in range(count):
            content = f"{number} ".ljust(SIZE, "x")
            body = chat({"role": "user", "content": content}, stream=stream)
            assert client.exchange(CHAT.path, body).status == 200
            backend.requests.clear()
        return gw.rss()

    with gw.client() as client:
        before = send(20)
        grown = send(150) - before
    print(f"150 long bodies: {grown / MEGABYTE:+.1f} MB")
    assert grown < 12 * MEGABYTE
