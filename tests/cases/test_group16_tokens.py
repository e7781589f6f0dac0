"""Group 16: how large a request is believed to be, and what is booked for it once it has ended."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartBackend, StartGateway
from tests.harness.behaviour import UsageStyle
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess, Metrics
from tests.harness.routes import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    STREAMING,
    Json,
    Route,
    text,
)

by_route = pytest.mark.parametrize("route", STREAMING, ids=lambda route: route.name)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def gw(shared_backend: FakeBackend, module_gateway: StartGateway, logs: Path) -> GatewayProcess:
    kept = {"access": str(logs / "access.jsonl"), "decisions": str(logs / "decisions.jsonl")}
    return module_gateway([shared_backend], log={**kept, "level": "debug", "chains": True})


def explained(gw: GatewayProcess, path: str, body: Json) -> Any:
    return gw.admin("POST", "/explain", {"path": path, "body": body})


def last_line(logs: Path, route: Route, outcome: str = "ok") -> Any:
    """The access log's last line, once it is of a request on this route; it is written a moment
    after the request has ended."""
    deadline = time.monotonic() + 5.0
    while True:
        lines = (logs / "access.jsonl").read_text().splitlines()
        last = json.loads(lines[-1]) if lines else {}
        if last.get("outcome") == outcome and last["dialect"].endswith(route.name):
            return last
        assert time.monotonic() < deadline, "no such line"
        time.sleep(0.05)


# T01

SYSTEM, TOOLS = text("T01 system", 20_000), text("T01 tools", 10_000)
HISTORY = [text(f"T01 turn {number}", 5_000) for number in range(4)]


def conversation(route: Route, history: list[str], *, whole: bool) -> Json:
    """With system prompt and tools as the route has them, or without."""
    body = route.body([*history, "ok"])
    if not whole:
        return body
    function = {"name": "lookup", "description": TOOLS, "parameters": {"type": "object"}}
    if route is CHAT:
        body["messages"].insert(0, {"role": "system", "content": SYSTEM})
        body["tools"] = [{"type": "function", "function": function}]
    elif route is MESSAGES:
        body["system"] = [{"type": "text", "text": SYSTEM}]
        body["tools"] = [{"name": "lookup", "description": TOOLS, "input_schema": {}}]
    elif route is RESPONSES:
        body["instructions"] = SYSTEM
        body["tools"] = [{"type": "function", **function}]
    else:
        body["prompt"] = f"{SYSTEM}\n{TOOLS}\n{body['prompt']}"
    return body


@by_route
def test_T01_everything_that_is_prefilled_is_counted(gw: GatewayProcess, route: Route) -> None:
    whole = explained(gw, route.path, conversation(route, HISTORY, whole=True))
    assert whole["work_class"] == "prefill"
    assert 50_000 <= whole["key_bytes"] < 53_000
    bare = explained(gw, route.path, conversation(route, [], whole=False))
    assert bare["work_class"] == "decode"
    assert bare["prompt_tokens"] < 20
    history = explained(gw, route.path, conversation(route, HISTORY, whole=False))
    assert bare["prompt_tokens"] < history["prompt_tokens"] < whole["prompt_tokens"] / 2


# T02

SCRIPTS: dict[str, tuple[str, int, int]] = {
    # 6000 characters each, and the fewest and most tokens that current tokenizers make of them.
    "english": (("The quick brown fox jumps over the lazy dog. " * 140)[:6000], 1250, 1500),
    "chinese": ("敏捷的棕色狐狸跳过了那只懒狗然后回家睡觉" * 300, 4000, 6000),
    "spaces": (" " * 6000, 47, 1500),
    "digits": ("3141592653" * 600, 2000, 6000),
    "hex": ("9f86d081884c7d65" * 375, 2700, 4200),
}
FACTOR = 4.0
"""What the first estimate of a text may be off by (docs/scheduling.md)."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_T02_the_first_estimate_is_within_the_documented_factor(
    start_backend: StartBackend, gateway: StartGateway, script: str
) -> None:
    content, fewest, most = SCRIPTS[script]
    gw = gateway([start_backend()])
    estimate = explained(gw, COMPLETIONS.path, {"model": "m", "prompt": content})["prompt_tokens"]
    assert estimate * FACTOR >= most
    if script != "spaces":  # may be taken for more than they are, never for less
        assert estimate <= fewest * FACTOR


@pytest.mark.parametrize("script", SCRIPTS)
def test_T02_estimates_follow_what_the_engine_counts(
    start_backend: StartBackend, gateway: StartGateway, script: str
) -> None:
    """Ten prompts of each script: each is learnt by itself, whatever the others are like."""
    backend = start_backend()
    gw = gateway([backend])
    for _ in range(10):
        for content, fewest, most in SCRIPTS.values():
            usage = {"prompt_tokens": (fewest + most) // 2, "completion_tokens": 1}
            backend.next(body=json.dumps({"choices": [], "usage": usage}).encode())
            body = {"model": "m", "prompt": content}
            assert gw.post(COMPLETIONS.path, body).status_code == 200
            # Where many are answered between two ticks, only some are learnt from.
            time.sleep(0.01)
    content, fewest, most = SCRIPTS[script]
    estimate = explained(gw, COMPLETIONS.path, {"model": "m", "prompt": content})["prompt_tokens"]
    real = (fewest + most) / 2
    if script == "spaces":
        assert estimate <= 6000 / 4
    else:
        assert real / 1.6 <= estimate <= real * 1.6


# T04

PICTURE = base64.b64encode(bytes(range(251)) * 9_200).decode()
"""3 MB in base64."""
URI = f"data:image/png;base64,{PICTURE}"
ASKED = "what is this?"


def picture_of(route: Route) -> Json:
    if route is CHAT:
        parts: Any = [{"type": "image_url", "image_url": {"url": URI}}]
    elif route is MESSAGES:
        source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
        parts = [{"type": "image", "source": source}]
    else:
        parts = [{"type": "input_image", "image_url": URI}]
    kind = "input_text" if route is RESPONSES else "text"
    message = {"role": "user", "content": [{"type": kind, "text": ASKED}, *parts]}
    body = route.body(["x"])
    body["input" if route is RESPONSES else "messages"] = [message]
    return body


SOUND = {
    **CHAT.body(["x"]),
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": ASKED},
                {"type": "input_audio", "input_audio": {"data": PICTURE, "format": "wav"}},
            ],
        }
    ],
}
MEDIA = [(route, picture_of(route)) for route in (CHAT, MESSAGES, RESPONSES)] + [(CHAT, SOUND)]


@pytest.mark.parametrize(
    ("route", "body"), MEDIA, ids=["chat", "messages", "responses", "chat-audio"]
)
def test_T04_media_is_not_text(
    gw: GatewayProcess, backend: FakeBackend, logs: Path, route: Route, body: Json
) -> None:
    assert len(json.dumps(body)) > 3_000_000
    said = explained(gw, route.path, body)
    assert said["work_class"] == "decode"
    assert 100 < said["prompt_tokens"] < 1500
    before = gw.admin("GET", "/index")["held_blocks"]
    backend.next(body=b'{"usage":{"prompt_tokens":600,"completion_tokens":1}}')
    assert gw.post(route.path, body).status_code == 200
    assert gw.admin("GET", "/index")["held_blocks"] - before < 100
    gw.settles_idle()
    last = last_line(logs, route)
    for written in (logs / "access.jsonl", logs / "decisions.jsonl", gw.log_path):
        content = written.read_text()
        assert PICTURE[1000:1060] not in content
        assert ASKED not in content
    assert last["prompt_bytes"] < 10_000


# T05


class Booked:
    """What is added to the books from now on."""

    def __init__(self, gw: GatewayProcess) -> None:
        self._gw = gw
        self._before = gw.metrics()

    def tokens(self) -> tuple[int, int, int]:
        """Prompt, cached, output, once one more request has ended."""
        gw, before = self._gw, self._before
        gw.outcomes_since(before)
        after = gw.metrics()
        return (
            self._more(after, "prefixgate_reported_prompt_tokens_total"),
            self._more(after, "prefixgate_reported_cached_tokens_total"),
            self._more(after, "prefixgate_output_tokens_total"),
        )

    def _more(self, after: Metrics, name: str) -> int:
        return int(after.total(name) - self._before.total(name))


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS], ids=lambda route: route.name)
@pytest.mark.parametrize("style", [style for style in UsageStyle if style is not UsageStyle.NONE])
def test_T05_usage_is_booked_once_wherever_it_stands(
    gw: GatewayProcess, backend: FakeBackend, route: Route, style: UsageStyle
) -> None:
    # The engine counts other than the events are: two tokens in each.
    backend.next(usage=style, texts=("a b", "c d", "e f"), reasoning=0)
    booked = Booked(gw)
    body = route.stream()
    assert gw.post(route.path, body).status_code == 200
    prompt, _, output = booked.tokens()
    assert prompt == max(1, len(backend.requests[0].body) // 4)
    assert output == 3


def stream(*events: Json, done: bool = True, named: bool = False) -> bytes:
    lines = [
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"
        for event in events
    ]
    return ("".join(lines) + ("data: [DONE]\n\n" if done else "")).encode()


def answered(gw: GatewayProcess, backend: FakeBackend, route: Route, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n"
    backend.next(script=(head % len(body) + body,))
    answer = gw.post(route.path, route.stream())
    assert (answer.status_code, answer.content) == (200, body)


def chunk(content: str | None, **more: Any) -> Json:
    delta = {} if content is None else {"content": content}
    return {"choices": [{"index": 0, "delta": delta}], **more}


USAGE = {
    "prompt_tokens": 90,
    "completion_tokens": 7,
    "total_tokens": 97,
    "prompt_tokens_details": {"cached_tokens": 64},
}
CHATS = {
    "empty delta": (chunk("a"), chunk(None, usage=USAGE)),
    "empty content": (chunk("a"), chunk("", usage=USAGE)),
    "no choices": (chunk("a"), {"choices": [], "usage": USAGE}),
    "last content": (chunk("a"), chunk("b", usage=USAGE)),
    "null before": (chunk("a", usage=None), chunk("b", usage=None), chunk(None, usage=USAGE)),
    "running totals": (
        chunk("a", usage=USAGE | {"completion_tokens": 1}),
        chunk("b", usage=USAGE | {"completion_tokens": 4}),
        chunk("c", usage=USAGE | {"completion_tokens": 7}),
    ),
    "first and last": (chunk("a", usage=USAGE), chunk("b"), chunk(None, usage=USAGE)),
    "mid-stream": (chunk("a"), chunk("b", usage=USAGE), chunk("c"), chunk("d")),
}


@pytest.mark.parametrize("events", CHATS.values(), ids=CHATS)
def test_T05_chat_usage(gw: GatewayProcess, backend: FakeBackend, events: tuple[Json, ...]) -> None:
    booked = Booked(gw)
    answered(gw, backend, CHAT, stream(*events))
    assert booked.tokens() == (90, 64, 7)


@pytest.mark.parametrize("end", ["completed", "incomplete", "failed", "cancelled"])
def test_T05_terminal_events_of_responses(
    gw: GatewayProcess, backend: FakeBackend, end: str
) -> None:
    usage = {
        "input_tokens": 90,
        "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 7,
    }
    events = (
        {"type": "response.created", "response": {"id": "resp_1", "usage": None}},
        {"type": "response.output_text.delta", "delta": "a"},
        {"type": f"response.{end}", "response": {"id": "resp_1", "usage": usage, "error": None}},
    )
    booked = Booked(gw)
    answered(gw, backend, RESPONSES, stream(*events, done=False, named=True))
    assert booked.tokens() == (90, 64, 7)


START = {"input_tokens": 20, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 6}
DELTAS: dict[str, Json] = {
    "output only": {"output_tokens": 7},
    "all again": {**START, "output_tokens": 7},
    "without the cache": {"input_tokens": 20, "output_tokens": 7},
    "zero input": {"input_tokens": 0, "output_tokens": 7},
    "cache only": {"cache_read_input_tokens": 64, "output_tokens": 7},
    "null": {"input_tokens": None, "output_tokens": 7},
}


@pytest.mark.parametrize("delta", DELTAS.values(), ids=DELTAS)
def test_T05_usage_of_messages_comes_in_two_parts(
    gw: GatewayProcess, backend: FakeBackend, delta: Json
) -> None:
    message = {"id": "msg_1", "type": "message", "usage": {**START, "output_tokens": 1}}
    events = (
        {"type": "message_start", "message": message},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": delta},
        {"type": "message_stop"},
    )
    booked = Booked(gw)
    answered(gw, backend, MESSAGES, stream(*events, done=False, named=True))
    assert booked.tokens() == (90, 64, 7)


# T07


@by_route
def test_T07_abandoned_streams_are_charged_for_what_was_made(
    gw: GatewayProcess, backend: FakeBackend, logs: Path, route: Route
) -> None:
    backend.next(n_tokens=1000, itl=0.02)
    before = gw.metrics()
    body = route.stream([text(f"T07 {route.name}", 4000)])
    with gw.client() as client:
        client.request(route.path, body)
        client.answer(lambda answer: answer.body.count(b"t5 ") > 0)
    assert gw.outcomes_since(before) == {"cancelled": 1}
    after = gw.metrics()
    made = "prefixgate_output_tokens_total"
    assert 6 <= after.total(made) - before.total(made) <= 30
    prompt = "prefixgate_prompt_tokens_total"
    assert 500 < after.total(prompt) - before.total(prompt) < 3000
    last = last_line(logs, route, outcome="cancelled")
    assert 6 <= last["output_tokens"] <= 30
    assert last["prompt_tokens"] > 500


def test_T07_usage_reported_before_the_client_left_counts(
    gw: GatewayProcess, backend: FakeBackend
) -> None:
    backend.next(n_tokens=1000, itl=0.02, usage=UsageStyle.EVERY)
    before = gw.metrics()
    with gw.client() as client:
        client.request(CHAT.path, CHAT.stream())
        client.answer(lambda answer: answer.body.count(b"t5 ") > 0)
    assert gw.outcomes_since(before) == {"cancelled": 1}
    after = gw.metrics()
    reported = "prefixgate_reported_prompt_tokens_total"
    assert after.total(reported) > before.total(reported)
    made = "prefixgate_output_tokens_total"
    assert 6 <= after.total(made) - before.total(made) <= 30
