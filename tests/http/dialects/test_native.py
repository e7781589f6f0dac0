"""Engines' own routes: what is read of a request, and of the answers as the engines write them."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.dialects.base import BadRequest
from gateway.http.dialects.key import MEDIA_BYTES
from gateway.http.dialects.registry import dialect_for
from gateway.http.dialects.usage import Usage
from gateway.http.sse import MAX_EVENT
from gateway.types import Prompt

ASKED = {"role": "user", "content": "hi"}


def parse(path: str, body: Any) -> Prompt:
    return dialect_for("POST", path).parse(json.dumps(body).encode(), "application/json")


@pytest.mark.parametrize(
    ("path", "body", "key", "cap"),
    [
        ("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 9}}, b"abc", 9),
        ("/generate", {"inputs": "abc", "parameters": {"max_new_tokens": 9}}, b"abc", 9),
        ("/generate", {"text_input": "abc", "max_tokens": 9}, b"abc", 9),
        ("/generate", {"input_ids": [1, 2]}, b"\1\0\0\0\2\0\0\0", None),
        ("/generate", {"text": ["abc", "de"]}, b"abc", None),
        ("/completion", {"prompt": "abc", "n_predict": 9}, b"abc", 9),
        ("/completion", {"prompt": "abc", "n_predict": -1}, b"abc", None),
        ("/completion", {"prompt": [1, "mixed"]}, b"", None),
        (
            "/inference/v1/generate",
            {"token_ids": [1, 2], "sampling_params": {"max_tokens": 9}},
            b"\1\0\0\0\2\0\0\0",
            9,
        ),
    ],
)
def test_generate_takes_the_prompt_under_every_name(
    path: str, body: Any, key: bytes, cap: int | None
) -> None:
    prompt = parse(path, body)
    assert (prompt.model, prompt.key, prompt.max_output_tokens) == ("", key, cap)
    assert prompt.generates
    assert not prompt.stream
    assert parse(path, {**body, "stream": True, "model": "m"}).stream
    assert parse(path, {**body, "model": "m"}).namespace.startswith(b"m")


def test_token_ids_and_text_never_share_a_namespace() -> None:
    text, ids = parse("/generate", {"text": "abc"}), parse("/generate", {"input_ids": [1]})
    assert text.namespace != ids.namespace


def test_generate_stream_always_streams() -> None:
    assert parse("/generate_stream", {"inputs": "abc"}).stream


def test_a_picture_is_part_of_the_key_and_not_text() -> None:
    first, second = (
        parse("/generate", {"text": "abc", "image_data": [data * 100_000]}).key for data in "xy"
    )
    assert first != second
    assert MEDIA_BYTES < len(first) < MEDIA_BYTES + 100
    chats = [
        parse("/api/chat", {"model": "m", "messages": [{**ASKED, "images": [data * 99_999]}]})
        for data in "xy"
    ]
    assert chats[0].key != chats[1].key
    assert chats[0].prompt_bytes < MEDIA_BYTES + 100


def test_ollama_streams_unless_told_not_to() -> None:
    chat = {"model": "m", "messages": [ASKED]}
    prompt = parse("/api/chat", {**chat, "options": {"num_predict": 9}})
    assert (prompt.stream, prompt.max_output_tokens) == (True, 9)
    assert not parse("/api/chat", {**chat, "stream": False}).stream
    turns = [ASKED, {"role": "assistant", "content": "yes"}]
    assert parse("/api/chat", {**chat, "messages": turns}).key.startswith(prompt.key)
    first, second = (
        parse("/api/generate", {"model": "m", "prompt": "hi", "system": system}).key
        for system in ("a", "b")
    )
    assert first != second


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"model":[1],"text":"x"}', b'{"model":"\\u0000","text":"x"}']
)
def test_what_no_engine_could_read_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        dialect_for("POST", "/generate").parse(body, "application/json")


def test_ollama_needs_a_model() -> None:
    with pytest.raises(BadRequest):
        parse("/api/chat", {"messages": []})


SGLANG = [
    {"text": text, "meta_info": {"prompt_tokens": 9, "completion_tokens": n, "cached_tokens": 4}}
    for n, text in enumerate(("a", "ab", "abc"), 1)
]
TGI: list[dict[str, Any]] = [
    {"index": 1, "token": {"id": 5, "text": "a"}, "generated_text": None, "details": None},
    {
        "index": 2,
        "token": {"id": 6, "text": "b"},
        "generated_text": "ab",
        "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 9},
    },
]
LLAMA: list[dict[str, Any]] = [
    {"content": "a", "stop": False, "tokens_predicted": 1, "tokens_evaluated": 9},
    {"content": "b", "stop": False, "tokens_predicted": 2, "tokens_evaluated": 9},
    {
        "content": "",
        "stop": True,
        "tokens_predicted": 2,
        "timings": {"prompt_n": 5, "cache_n": 4, "predicted_n": 2},
    },
]
COHERE: list[dict[str, Any]] = [
    {"type": "message-start", "id": "1", "delta": {"message": {"role": "assistant"}}},
    {"type": "content-start", "index": 0},
    {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "a"}}}},
    {"type": "content-end", "index": 0},
    {
        "type": "message-end",
        "delta": {
            "finish_reason": "COMPLETE",
            "usage": {
                "billed_units": {"input_tokens": 1, "output_tokens": 1},
                "tokens": {"input_tokens": 9, "output_tokens": 2},
            },
        },
    },
]
EVENTS = [
    ("/generate", SGLANG, 3, Usage(9, 3, 4), False),
    ("/generate_stream", TGI, 2, Usage(9, 2, None), True),
    ("/completion", LLAMA, 2, Usage(9, 2, 4), True),
    ("/v2/chat", COHERE, 1, Usage(9, 2, None), True),
]


@pytest.mark.parametrize(("path", "events", "content", "usage", "done"), EVENTS)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_streams_of_events(
    path: str, events: Any, content: int, usage: Usage, done: bool, size: int
) -> None:
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    scanner = dialect_for("POST", path).scanner()
    for at in range(0, len(stream), size):
        scanner.feed(stream[at : at + size])
    scanner.finish()
    assert (scanner.content_events, scanner.usage, scanner.done) == (content, usage, done)
    assert scanner.error is None
    scanner.feed(b"data: [DONE]\n\n")
    assert scanner.done


OLLAMA_LINES: list[dict[str, Any]] = [
    {"model": "m", "message": {"role": "assistant", "content": ""}, "done": False},
    {"model": "m", "message": {"role": "assistant", "content": 'é {"a"}'}, "done": False},
    {"model": "m", "response": "b", "done": False},
    {"model": "m", "done": True, "prompt_eval_count": 9, "eval_count": 2},
]


@given(cuts=st.lists(st.integers(0, 400)))
def test_streams_of_lines(cuts: list[int]) -> None:
    stream = "".join(json.dumps(line) + "\n" for line in OLLAMA_LINES).encode()
    scanner = dialect_for("POST", "/api/chat").scanner()
    bounds = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    firsts = [scanner.feed(stream[a:b]) for a, b in pairwise(bounds)]
    assert sum(firsts) == 1
    assert scanner.at_boundary
    assert (scanner.content_events, scanner.usage) == (2, Usage(9, 2, None))
    assert scanner.done
    assert not scanner.finish()


def test_a_line_without_its_end_counts_when_the_stream_ends() -> None:
    scanner = dialect_for("POST", "/api/generate").scanner()
    assert not scanner.feed(b'{"response":"a"}')
    assert not scanner.at_boundary
    assert scanner.finish()
    assert scanner.content_events == 1


def test_a_huge_line_is_not_kept() -> None:
    scanner = dialect_for("POST", "/api/chat").scanner()
    for _ in range(40):
        scanner.feed(b'"' + b"x" * (MAX_EVENT // 20))
        assert len(scanner._partial) <= MAX_EVENT + 40
    scanner.feed(b'\n{"response":"a"}\n')
    assert scanner.content_events == 1
    assert scanner.at_boundary


def test_ollamas_errors() -> None:
    dialect = dialect_for("POST", "/api/chat")
    event = dialect.error_event(502, 'it "broke"', type="x")
    assert event.endswith(b"\n")
    assert json.loads(event) == {"error": 'it "broke"'}
    scanner = dialect.scanner()
    scanner.feed(event)
    assert scanner.error == "error"


@pytest.mark.parametrize(
    ("path", "answer", "usage"),
    [
        ("/generate", SGLANG[-1], Usage(9, 3, 4)),
        ("/generate", {"generated_text": "ab", "details": TGI[-1]["details"]}, Usage(9, 2, None)),
        ("/generate", [{"generated_text": "ab"}], None),
        ("/completion", LLAMA[-1], Usage(9, 2, 4)),
        ("/inference/v1/generate", {"usage": {"prompt_tokens": 9}}, Usage(9, None, None)),
        ("/api/chat", OLLAMA_LINES[-1], Usage(9, 2, None)),
        ("/v2/chat", {"usage": COHERE[-1]["delta"]["usage"]}, Usage(9, 2, None)),
        ("/generate", {"meta_info": {"prompt_tokens": "9"}}, None),
        ("/generate", {"timings": 3, "details": []}, None),
    ],
)
def test_whole_answers(path: str, answer: Any, usage: Usage | None) -> None:
    assert dialect_for("POST", path).usage(json.dumps(answer).encode()) == usage
