"""An answer that is cut off at every one of its bytes, between the backend and the gateway."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import Answer, End
from tests.harness.routes import CHAT
from tests.harness.tcp_proxy import Stop, TcpProxy, Way

QUIET: dict[str, Any] = {"interval": 600.0, "timeout": 5.0, "unhealthy_after": 1_000_000}
"""Probes that put nobody out: what is cut off here, probes are too."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b\r\n\r\n"
EVENTS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"cut"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"me"}}]}\n\n',
    b"data: [DONE]\n\n",
)
WHOLE = b'{"choices":[{"index":0,"message":{"content":"cut me"}}]}'


def _chunks(pieces: tuple[bytes, ...]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


STREAM_HEAD = HEAD % (b"text/event-stream", b"transfer-encoding: chunked")
WHOLE_HEAD = HEAD % (b"application/json", b"content-length: %d" % len(WHOLE))
CHUNKED_HEAD = HEAD % (b"application/json", b"transfer-encoding: chunked")
SHAPES = {
    "stream": (STREAM_HEAD, _chunks(EVENTS), b"".join(EVENTS)),
    "whole": (WHOLE_HEAD, WHOLE, WHOLE),
    "whole-chunked": (CHUNKED_HEAD, _chunks((WHOLE[:20], WHOLE[20:])), WHOLE),
}
"""Head, framed body and payload of an answer that is short, so that all places can be tried."""


@pytest.mark.parametrize("stop", [Stop.FIN, Stop.RST])
@pytest.mark.parametrize("shape", SHAPES)
def test_cut_at_every_byte(
    start_backend: StartBackend, gateway: StartGateway, shape: str, stop: Stop
) -> None:
    """What is cut never looks whole, and is sent elsewhere exactly when none of it was sent on."""
    head, framed, payload = SHAPES[shape]
    cut, other = start_backend(), start_backend()
    cut.behave(script=(head + framed,))
    gw = gateway([other], health=QUIET, policy={"name": "round_robin"}, retries={"budget": 1.0})
    body = CHAT.stream() if shape == "stream" else CHAT.body(["hello"])
    size = len(head) + len(framed)
    # Of an answer that is no stream nothing is sent on before it is whole.
    first_event = len(head) + framed.index(b"\r\n", 4) + 2 if shape == "stream" else size
    with TcpProxy(cut.port) as proxy:
        for place in range(size + 1):
            # Back as another backend each time: nothing of the cuts before is held against it.
            proxy.behave()
            gw.admin("POST", "/backends", {"url": proxy.url})
            wait_healthy(gw, proxy.url)
            proxy.behave(down=Way(stop_after=place, stop=stop))
            answer, elsewhere = asked_first(gw, cut, other, body)
            gw.admin("DELETE", f"/backends/{gw.backend_id(proxy.url)}")
            told = (shape, place, answer)
            if elsewhere:
                assert place < first_event, told
                assert answer.end is End.FRAMED, told
                assert answer.body == bytes(other.requests[-1].answer), told
            else:
                assert place >= len(head), told
                check_cut(answer, payload, place == size)
    assert set(gw.settles_idle().outcomes) == {"ok", "upstream_error"}


def asked_first(
    gw: GatewayProcess, first: FakeBackend, other: FakeBackend, body: dict[str, Any]
) -> tuple[Answer, bool]:
    """The answer to a request that went to `first` first, and whether `other` got it too."""
    while True:
        before, others = len(first.requests), len(other.requests)
        with gw.client() as client:
            answer = client.exchange(CHAT.path, body)
        if len(first.requests) > before:
            return answer, len(other.requests) > others


def check_cut(answer: Answer, payload: bytes, complete: bool) -> None:
    """What the client got of an answer with this payload cannot be taken for a whole one.

    Args:
        complete: it is a whole one.
    """
    if answer.status == 502:
        assert answer.end is End.FRAMED, answer
        assert answer.json["error"]["code"] in ("reset", "incomplete"), answer
        return
    assert answer.status == 200, answer
    if answer.end is not End.FRAMED:
        assert not complete, answer
        assert payload.startswith(answer.body), answer
        return
    if answer.body == payload:
        return  # all of it was there; what was cut off is the framing's end, or nothing
    assert not complete, answer
    *events, error = answer.stream.events
    assert json.loads(error.data)["error"]["type"] == "upstream_error", answer
    assert payload.startswith(b"".join(b"data: %b\n\n" % each.data.encode() for each in events))


def wait_healthy(gw: GatewayProcess, url: str) -> None:
    deadline = time.monotonic() + 10.0
    while not any(
        backend["url"] == url and backend["state"] == "healthy"
        for backend in gw.admin("GET", "/backends")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.002)
