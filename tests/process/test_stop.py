"""How a gateway stops: what it still does after a signal, in which order, and how it ends."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import Answer, End, RawClient
from tests.harness.routes import CHAT, STREAMING, Route
from tests.process.full_listener import FullListener

both_parsers = pytest.mark.parametrize("parser", ["httptools", "h11"])
LIMITS = {"decode": {"max_requests": 1}}
BIG = 400_000
"""Bytes of a JSON answer that is too large to be held until it is whole."""


class Scene:
    """A gateway with one backend, and requests that are in different places in it."""

    def __init__(self, gw: GatewayProcess, backend: FakeBackend, stack: ExitStack) -> None:
        self.gw = gw
        self.backend = backend
        self._stack = stack

    def send(self, body: Any, path: str = CHAT.path) -> RawClient:
        client = self._stack.enter_context(self.gw.client())
        client.request(path, body)
        return client

    # where a request can be

    def in_the_body(self) -> RawClient:
        client = self._stack.enter_context(self.gw.client())
        client.send(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99\r\n\r\n{")
        self.phase("body")
        return client

    def in_the_queue(self) -> RawClient:
        self.streaming()
        client = self.send(CHAT.stream())
        self.phase("queue")
        return client

    def connecting(self) -> RawClient:
        self.backend.stop()
        self._stack.enter_context(FullListener(self.backend.port))
        client = self.send(CHAT.stream())
        self.phase("connect")
        return client

    def waiting_for_an_answer(self) -> RawClient:
        self.backend.next(hang=True)
        client = self.send(CHAT.body(["hello"]))
        self.backend.wait_requests(1)
        return client

    def waiting_for_a_stream(self) -> RawClient:
        self.backend.next(early_head=True, ttft=60.0)
        client = self.send(CHAT.stream())
        self.backend.wait_requests(1)
        return client

    def streaming(self, route: Route = CHAT) -> RawClient:
        self.backend.next(itl=0.02, n_tokens=10_000)
        client = self.send(route.stream(), route.path)
        client.events(2)
        return client

    def in_a_large_answer(self) -> RawClient:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.backend.next(script=(head % BIG + b"x" * (BIG - 10), 60.0))
        client = self.send(CHAT.body(["hello"]))
        client.answer(lambda answer: len(answer.body) >= BIG - 10)
        return client

    # signals

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal, and wait until it is obeyed."""
        self.gw.signal(number)
        deadline = time.monotonic() + 10.0
        while "stopping: not ready" not in self.gw.log:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def phase(self, phase: str) -> None:
        deadline = time.monotonic() + 10.0
        while phase not in {each["phase"] for each in self.gw.admin("GET", "/requests")}:
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    start_backend: StartBackend,
    gateway: StartGateway,
    tmp_path: Path,
) -> Iterator[Callable[..., Scene]]:
    with ExitStack() as stack:

        def build(**server: Any) -> Scene:
            backend = start_backend()
            gw = gateway(
                [backend],
                server={"drain": 60.0} | server,
                scheduling=LIMITS,
                log={"access": str(tmp_path / "access.jsonl")},
            )
            return Scene(gw, backend, stack)

        yield build


# what each of them gets


def is_refused(answer: Answer) -> None:
    assert (answer.status, answer.end) == (503, End.FRAMED)
    assert answer.json["error"]["code"] == "shutting_down"
    assert len(answer.all("retry-after")) == 1
    assert answer.all("connection") == ["close"]


def ends_with_an_error(answer: Answer) -> None:
    assert (answer.status, answer.end) == (200, End.FRAMED)
    assert answer.stream.errors
    assert b"shutting down" in answer.body
    assert not answer.stream.done


def is_broken(answer: Answer) -> None:
    assert (answer.status, answer.end) == (200, End.BROKEN)


PLACES: dict[str, tuple[Callable[[Scene], RawClient], Callable[[Answer], None]]] = {
    "body": (Scene.in_the_body, is_refused),
    "queue": (Scene.in_the_queue, is_refused),
    "connect": (Scene.connecting, is_refused),
    "first byte of an answer": (Scene.waiting_for_an_answer, is_refused),
    "first byte of a stream": (Scene.waiting_for_a_stream, ends_with_an_error),
    "stream": (Scene.streaming, ends_with_an_error),
    "large answer": (Scene.in_a_large_answer, is_broken),
}
in_each_place = pytest.mark.parametrize("place", PLACES)


@in_each_place
@both_parsers
def test_what_is_left_at_the_drain_limit_is_cut_short(
    scene: Callable[..., Scene], parser: str, place: str
) -> None:
    there = scene(drain=0.4, parser=parser)
    put, gets = PLACES[place]
    client = put(there)
    there.gw.signal(signal.SIGTERM)
    gets(client.answer())
    assert there.gw.ended() == 0
    assert "Traceback" not in there.gw.log


@in_each_place
def test_a_second_signal_ends_it_now(scene: Callable[..., Scene], place: str) -> None:
    there = scene()
    put, gets = PLACES[place]
    client = put(there)
    there.stop()
    started = time.monotonic()
    there.gw.signal(signal.SIGTERM)
    gets(client.answer())
    assert there.gw.ended() == 128 + signal.SIGTERM
    assert time.monotonic() - started < 5.0
    assert "Traceback" not in there.gw.log


def test_a_second_signal_ends_the_delay_too(scene: Callable[..., Scene]) -> None:
    there = scene(shutdown_delay=60.0)
    client = there.streaming()
    there.stop(signal.SIGINT)
    client.events(4)
    there.gw.signal(signal.SIGINT)
    ends_with_an_error(client.answer())
    assert there.gw.ended() == 128 + signal.SIGINT


def test_a_client_that_does_not_read_does_not_keep_it(scene: Callable[..., Scene]) -> None:
    there = scene(drain=0.2)
    there.backend.next(n_tokens=200_000)
    client = there.send(CHAT.stream())
    client.events(1)
    time.sleep(0.5)  # by now nobody can write any more
    there.gw.signal(signal.SIGTERM)
    assert there.gw.ended() == 0


@pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)
def test_the_error_is_in_the_words_of_each_api(scene: Callable[..., Scene], route: Route) -> None:
    there = scene(drain=0.2)
    client = there.streaming(route)
    there.gw.signal(signal.SIGTERM)
    ends_with_an_error(client.answer())


def test_a_stream_that_has_only_comments_yet_ends_with_an_error(
    scene: Callable[..., Scene],
) -> None:
    there = scene(drain=0.2, stream_ping=0.3)
    there.backend.next(hang=True)
    client = there.send(CHAT.stream())
    client.answer(lambda answer: answer.body.startswith(b":"))
    there.gw.signal(signal.SIGTERM)
    ends_with_an_error(client.answer())


def test_an_engine_is_told_that_nobody_waits(scene: Callable[..., Scene], tmp_path: Path) -> None:
    there = scene(drain=0.2)
    there.streaming()
    there.gw.signal(signal.SIGTERM)
    assert there.gw.ended() == 0
    [recorded] = there.backend.requests
    there.backend.wait(lambda: recorded.closed is not None)
    [line] = (tmp_path / "access.jsonl").read_text().splitlines()
    assert json.loads(line)["outcome"] == "rejected"


# the order


@both_parsers
def test_L15_load_balancers_have_time_to_notice(scene: Callable[..., Scene], parser: str) -> None:
    there = scene(shutdown_delay=3.0, parser=parser)
    gw = there.gw
    stream, queued, kept = there.streaming(), there.send(CHAT.stream()), gw.client()
    there.phase("queue")
    assert kept.exchange("/live", method="GET").header("connection") is None
    there.stop()
    with gw.client() as fresh:
        answer = fresh.exchange("/ready", method="GET")
        assert (answer.status, answer.json["status"]) == (503, "shutting down")
        assert answer.header("connection") == "close"
    # All is served, on new connections and on old ones, which end with it.
    answer = kept.exchange("/v1/models", method="GET")
    assert (answer.status, answer.header("connection")) == (200, "close")
    assert kept.closed_by_peer()
    assert not queued.has_answer()
    # Then nothing is let in, nothing waits, and what runs goes on.
    is_refused(queued.answer())
    with pytest.raises(ConnectionRefusedError):
        gw.client()
    stream.events(30)
    gw.signal(signal.SIGTERM)
    ends_with_an_error(stream.answer())


@both_parsers
def test_new_requests_are_proxied_during_the_delay(
    scene: Callable[..., Scene], parser: str
) -> None:
    there = scene(shutdown_delay=60.0, parser=parser)
    kept = there.gw.client()
    assert kept.exchange("/live", method="GET").status == 200
    there.stop()
    for client in (kept, there.gw.client()):
        answer = client.exchange(CHAT.path, CHAT.stream())
        assert answer.stream.done
        assert answer.header("connection") == "close"
        assert client.closed_by_peer()
    there.gw.signal(signal.SIGTERM)
    assert there.gw.ended() == 128 + signal.SIGTERM


def test_nothing_under_way_is_no_reason_to_wait(scene: Callable[..., Scene]) -> None:
    there = scene()
    with there.gw.client() as idle:
        idle.exchange("/live", method="GET")
        started = time.monotonic()
        there.gw.signal(signal.SIGTERM)
        assert idle.closed_by_peer()
    assert there.gw.ended() == 0
    assert time.monotonic() - started < 5.0


def test_log_lines_of_the_last_requests_are_written(
    scene: Callable[..., Scene], tmp_path: Path
) -> None:
    there = scene()
    client = there.streaming()
    there.stop()
    there.gw.signal(signal.SIGTERM)
    client.answer()
    there.gw.ended()
    assert len((tmp_path / "access.jsonl").read_text().splitlines()) == 1
