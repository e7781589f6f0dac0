"""Requests and answers as the tests of HTTP's edges need them."""

from __future__ import annotations

import json
from typing import Any

from tests.harness.gateway_process import GatewayProcess
from tests.harness.raw import Answer
from tests.harness.routes import CHAT, Route

MAX_BODY = 20_000
"""The gateway's limit."""
BODY = json.dumps(CHAT.body(["hello"])).encode()


def chat_head(*lines: str, path: str = CHAT.path, method: str = "POST") -> bytes:
    fields = "".join(f"{line}\r\n" for line in ("content-type: application/json", *lines))
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\n{fields}\r\n".encode()


def filled(size: int, route: Route = CHAT) -> bytes:
    """A valid body of exactly so many bytes."""
    body = json.dumps(route.body(["@"])).encode()
    return body.replace(b"@", b"x" * (size - len(body) + 1))


def openai_error(answer: Answer) -> Any:
    assert answer.header("content-type") == "application/json"
    error = answer.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def still_serves(gw: GatewayProcess) -> None:
    assert gw.post(CHAT.path, CHAT.body(["hello"])).status_code == 200
