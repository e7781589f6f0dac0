"""Engines' own routes through the running gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import StartGateway
from tests.harness.behaviour import Cut
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import End
from tests.harness.routes import text

LINES = [
    {"model": "m", "message": {"role": "assistant", "content": f"t{number} "}, "done": False}
    for number in range(4)
]
END = {"model": "m", "done": True, "prompt_eval_count": 90, "eval_count": 7}
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def lines(*objects: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in objects)


def head(content_type: str) -> bytes:
    return f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\n".encode() + b"%b\r\n\r\n"


@pytest.fixture(scope="module")
def gw(shared_backend: FakeBackend, module_gateway: StartGateway) -> GatewayProcess:
    return module_gateway(
        [shared_backend], server={"stream_ping": 0.2}, health={"unhealthy_after": 1000}
    )


def length(body: bytes) -> bytes:
    return b"content-length: %d" % len(body)


def test_a_stream_of_lines_is_passed_on_and_counted(
    gw: GatewayProcess, backend: FakeBackend
) -> None:
    body = lines(*LINES, END)
    before = gw.metrics()
    # A silence longer than the one after which a comment goes into an event stream.
    start = head("application/x-ndjson") % length(body)
    backend.next(script=(start + body[:10], 0.7, body[10:]))
    answer = gw.post("/api/chat", CHAT)
    assert (answer.status_code, answer.content) == (200, body)
    assert gw.outcomes_since(before) == {"ok": 1}
    after = gw.metrics()
    for name, count in (
        ("prefixgate_output_tokens_total", 7),
        ("prefixgate_reported_prompt_tokens_total", 90),
        ("prefixgate_ttft_seconds_count", 1),
    ):
        assert after.total(name) - before.total(name) == count, name


def test_a_cut_stream_of_lines_ends_with_an_error_line(
    gw: GatewayProcess, backend: FakeBackend
) -> None:
    start = head("application/x-ndjson") % b"connection: close"
    backend.next(script=(start + lines(*LINES), 0.05, Cut.FIN))
    before = gw.metrics()
    with gw.client() as client:
        answer = client.exchange("/api/chat", CHAT)
    assert answer.end is End.FRAMED
    *passed, error = answer.body.splitlines()
    assert b"\n".join(passed) + b"\n" == lines(*LINES)
    assert isinstance(json.loads(error)["error"], str)
    assert gw.outcomes_since(before) == {"upstream_error": 1}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": text("generate", 4000)}),
        ("/generate", {"input_ids": list(range(1000))}),
        ("/generate_stream", {"inputs": text("generate", 4000)}),
        ("/completion", {"prompt": text("generate", 4000)}),
        ("/inference/v1/generate", {"token_ids": list(range(1000))}),
        ("/api/generate", {"model": "m", "prompt": text("generate", 4000), "stream": False}),
        ("/v2/chat", {**CHAT, "messages": [{"role": "user", "content": text("v2", 4000)}]}),
    ],
)
def test_what_was_sent_is_known_to_be_there(
    gw: GatewayProcess, backend: FakeBackend, path: str, body: Any
) -> None:
    body = {**body, "unique": path}
    assert gw.post(path, body).status_code == 200
    assert json.loads(backend.requests[0].body) == body
    assert gw.explain(path, body).matched_tokens > 800
