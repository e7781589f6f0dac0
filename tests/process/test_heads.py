"""How large, how slow and how many a client's heads and connections may be, on each parser."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from tests.conftest import StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import RawClient
from tests.harness.routes import CHAT, MESSAGES
from tests.process.requests import BODY, chat_head, openai_error, still_serves

MAX_HEAD, MAX_HEADERS, MAX_TARGET, MAX_CONNECTIONS = 4000, 40, 1000, 20
WHOLE = chat_head(f"content-length: {len(BODY)}") + BODY
LIVE = b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture(scope="module", params=["httptools", "h11"])
def gw(
    request: pytest.FixtureRequest, shared_backend: FakeBackend, module_gateway: StartGateway
) -> GatewayProcess:
    return module_gateway(
        [shared_backend],
        server={
            "parser": request.param,
            "max_head": MAX_HEAD,
            "max_headers": MAX_HEADERS,
            "max_target": MAX_TARGET,
            "max_connections": MAX_CONNECTIONS,
            "head_timeout": 0.6,
            "keep_alive": 1.2,
        },
        health={"unhealthy_after": 1000, "interval": 60.0},
    )


@pytest.fixture
def client(gw: GatewayProcess) -> Iterator[RawClient]:
    with gw.client() as connected:
        yield connected


def is_refused(client: RawClient, status: int, code: str) -> None:
    answer = client.answer()
    assert (answer.status, answer.header("connection")) == (status, "close")
    assert openai_error(answer)["code"] == code
    assert client.closed_by_peer()


def is_cut_off(client: RawClient, data: bytes) -> None:
    """Sending it again and again comes to an end."""
    deadline = time.monotonic() + 10
    with contextlib.suppress(OSError):
        while time.monotonic() < deadline:
            client.send(data)
            time.sleep(0.01)
    assert time.monotonic() < deadline


def test_heads_within_the_limits_pass(client: RawClient, backend: FakeBackend) -> None:
    padding = [f"x-{number}: {'y' * 60}" for number in range(MAX_HEADERS - 5)]
    path = CHAT.path + "?" + "q" * (MAX_TARGET - 100)
    client.send(chat_head(*padding, f"content-length: {len(BODY)}", path=path) + BODY)
    assert client.answer().status == 200
    assert backend.requests[0].header(b"x-7") == b"y" * 60


@pytest.mark.parametrize("pieces", [1, 20])
def test_a_large_head(gw: GatewayProcess, client: RawClient, pieces: int) -> None:
    data = chat_head(f"x: {'y' * MAX_HEAD}")
    size = len(data) // pieces + 1
    try:
        for at in range(0, len(data), size):
            client.send(data[at : at + size])
            time.sleep(0.01 if pieces > 1 else 0)
    except OSError:
        pass  # it did not wait for the rest
    is_refused(client, 431, "head_too_large")
    still_serves(gw)


def test_a_head_that_never_ends(gw: GatewayProcess, client: RawClient) -> None:
    client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx: ")
    is_cut_off(client, b"y" * 10_000)
    still_serves(gw)


def test_many_headers(client: RawClient) -> None:
    client.send(chat_head(*(f"x-{number}: y" for number in range(MAX_HEADERS))))
    is_refused(client, 431, "too_many_headers")


def test_a_long_target(client: RawClient) -> None:
    client.send(chat_head(path="/v1/x?" + "q" * MAX_TARGET))
    is_refused(client, 414, "target_too_long")


def test_a_refusal_speaks_the_dialect(client: RawClient) -> None:
    client.send(chat_head(*(f"x-{n}: y" for n in range(MAX_HEADERS)), path=MESSAGES.path))
    answer = client.answer()
    assert answer.json["type"] == "error"


def test_a_slow_head(client: RawClient) -> None:
    """Each byte comes soon enough; the head does not."""
    started = time.monotonic()
    try:
        for byte in chat_head() * 10:
            client.send(bytes([byte]))
            time.sleep(0.1)
            if client.has_answer():
                break
    except OSError:
        pytest.fail("closed without a word")
    assert 0.4 < time.monotonic() - started < 5
    is_refused(client, 408, "slow_head")


def test_a_slow_second_head(client: RawClient) -> None:
    client.send(LIVE)
    assert client.answer().status == 200
    client.send(LIVE[:10])
    is_refused(client, 408, "slow_head")


def test_a_connection_without_a_first_byte_is_idle(client: RawClient) -> None:
    started = time.monotonic()
    assert client.closed_by_peer()
    assert 0.8 < time.monotonic() - started < 10


def test_line_ends_do_not_keep_a_connection(client: RawClient) -> None:
    started = time.monotonic()
    try:
        while time.monotonic() - started < 10 and not client.has_answer():
            client.send(b"\r\n")
            time.sleep(0.1)
    except OSError:
        pass
    assert time.monotonic() - started < 8


def test_a_slow_head_behind_a_stream_waits_for_its_turn(
    client: RawClient, backend: FakeBackend
) -> None:
    backend.next(itl=0.1, n_tokens=15)
    stream = json.dumps(CHAT.stream(["hello"])).encode()
    client.send(chat_head(f"content-length: {len(stream)}") + stream + LIVE[:10])
    answer = client.answer()
    assert answer.stream.done
    assert len(answer.stream.events) >= 15
    is_refused(client, 408, "slow_head")


@pytest.mark.parametrize("broken", [b"GARBAGE\r\n\r\n", b"TRACE / HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_a_broken_request_behind_a_stream_waits_for_its_turn(
    gw: GatewayProcess, client: RawClient, backend: FakeBackend, broken: bytes
) -> None:
    """Its answer in the middle of the other's would be taken for a part of that."""
    backend.next(itl=0.05, n_tokens=10)
    backend.next(ttft=0.2)
    stream = json.dumps(CHAT.stream(["hello"])).encode()
    client.send(chat_head(f"content-length: {len(stream)}") + stream)
    client.events(1)
    client.send(WHOLE + broken + LIVE)
    answer = client.answer()
    assert answer.stream.done
    assert len(answer.stream.text.split()) == 10
    assert client.answer().json["object"] == "chat.completion"
    assert client.answer().status in (400, 405)
    assert client.closed_by_peer()
    assert "Traceback" not in gw.log


def test_a_broken_body_behind_a_stream_waits_for_its_turn(
    gw: GatewayProcess, client: RawClient, backend: FakeBackend
) -> None:
    backend.next(itl=0.05, n_tokens=10)
    stream = json.dumps(CHAT.stream(["hello"])).encode()
    client.send(
        chat_head(f"content-length: {len(stream)}")
        + stream
        + chat_head("transfer-encoding: chunked")
        + b"zz\r\n"
    )
    assert client.answer().stream.done
    is_refused(client, 400, "invalid_http")
    assert len(backend.requests) == 1
    assert gw.metrics().total("prefixgate_in_flight") == 0


def test_pipelining_is_bounded(client: RawClient, backend: FakeBackend) -> None:
    """With h11 they wait in the socket, and are answered one by one."""
    backend.next(ttft=0.3)
    with contextlib.suppress(OSError):
        client.send(WHOLE + LIVE * 500)
    assert client.answer().status == 200
    statuses = []
    while (answer := client.answer()).status:
        statuses.append(answer.status)
        if answer.status != 200 or len(statuses) == 500:
            break
    if len(statuses) < 500:
        assert statuses == [200] * 32 + [400]
        assert openai_error(answer)["code"] == "too_many_pipelined"


def test_a_trailer_is_no_header(client: RawClient, backend: FakeBackend) -> None:
    client.send(
        chat_head("transfer-encoding: chunked")
        + b"%x\r\n%b\r\n0\r\n" % (len(BODY), BODY)
        + b"x-trailer: 1\r\nx-prefixgate-priority: nonsense\r\n\r\n"
    )
    assert client.answer().status == 200
    assert backend.requests[0].header(b"x-trailer") is None
    assert client.exchange(CHAT.path, BODY).status == 200


def test_what_is_around_chunks_is_bounded(gw: GatewayProcess, client: RawClient) -> None:
    client.send(chat_head("transfer-encoding: chunked") + b"5;x=")
    is_cut_off(client, b"y" * 10_000)
    still_serves(gw)


def test_more_connections_than_allowed(gw: GatewayProcess) -> None:
    clients: list[RawClient] = []
    try:
        refused = None
        for _ in range(MAX_CONNECTIONS + 1):
            clients.append(gw.client())
            if clients[-1]._socket.getsockname() and len(clients) > MAX_CONNECTIONS - 2:
                time.sleep(0.05)
                if clients[-1].has_answer():
                    refused = clients[-1].answer()
                    break
        assert refused is not None
        assert (refused.status, refused.header("retry-after")) == (503, "1")
        assert openai_error(refused)["code"] == "too_many_connections"
    finally:
        for client in clients:
            client.close()
    time.sleep(0.1)
    still_serves(gw)
    refused_heads = gw.metrics().by("prefixgate_head_refusals_total", "reason")
    assert refused_heads["too_many_connections"] >= 1


def test_an_answer_to_a_body_that_is_not_read_arrives(client: RawClient) -> None:
    """A connection that is closed with bytes unread is reset, and may lose its last answer."""
    client.send(chat_head("content-length: 100000000000"))
    try:
        for _ in range(100):
            client.send(b"x" * 100_000)
    except OSError:
        pass
    assert client.answer().status == 413


def test_a_head_in_single_bytes_is_read(client: RawClient, backend: FakeBackend) -> None:
    for byte in WHOLE:
        client.send(bytes([byte]))
    assert client.answer().status == 200
    assert backend.requests[0].body == BODY


def test_descriptors_that_run_out_are_survived(gateway: StartGateway, backend: FakeBackend) -> None:
    """The limit of connections leaves room; without that, accepting just fails for a while."""
    gw = gateway([backend], server={"max_connections": 100_000})
    resource.prlimit(gw.pid, resource.RLIMIT_NOFILE, (60, 60))
    held: list[socket.socket] = []
    try:
        held += [socket.create_connection(("127.0.0.1", gw.port), 5) for _ in range(100)]
        time.sleep(0.5)
        ticks = cpu_ticks(gw.pid)
        time.sleep(1.0)
        assert cpu_ticks(gw.pid) - ticks < 50, "it spins"
    finally:
        for sock in held:
            sock.close()
    deadline = time.monotonic() + 10
    status = 0
    while status != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
        with contextlib.suppress(OSError), gw.client(timeout=2.0) as client:
            status = client.exchange("/live", method="GET").status


def test_descriptors_that_run_out_are_no_backends_fault(
    gateway: StartGateway, backend: FakeBackend
) -> None:
    gw = gateway([backend], breaker={"failures": 1}, health={"interval": 0.2, "unhealthy_after": 1})
    with gw.client() as client:
        assert client.exchange("/live", method="GET").status == 200
        _, hard = resource.prlimit(gw.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(gw.pid, resource.RLIMIT_NOFILE, (4, hard))
        deadline = time.monotonic() + 10
        while "is not probed" not in gw.log:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        answer = client.exchange(CHAT.path, BODY)
        assert (answer.status, answer.json["error"]["code"]) == (503, "no_descriptors")
        assert answer.header("retry-after") == "1"
        resource.prlimit(gw.pid, resource.RLIMIT_NOFILE, (hard, hard))
        assert client.exchange(CHAT.path, BODY).status == 200
    assert gw.metrics().total("prefixgate_backend_ejections_total") == 0
    gw.settles_idle()


def cpu_ticks(pid: int) -> int:
    """Of 100 a second."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
