"""The event stream scanner, against a reader that splits lines and decodes every event."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.http.dialects.usage import Usage, read_usage
from gateway.http.sse import (
    CHAT,
    COMPLETIONS,
    MAX_EVENT,
    MESSAGES,
    RESPONSES,
    UNKNOWN,
    Grammar,
    StreamScanner,
)


@dataclass
class Seen:
    content_events: int = 0
    usage: Usage | None = None
    error: str | None = None
    done: bool = False
    at_boundary: bool = True

    def add(self, usage: Usage | None) -> None:
        if usage is not None:
            self.usage = usage if self.usage is None else self.usage.updated(usage)


def seen_by(grammar: Grammar, pieces: Iterable[bytes], *, finish: bool = True) -> Seen:
    scanner = StreamScanner(grammar)
    firsts = [scanner.feed(piece) for piece in pieces]
    boundary = scanner.at_boundary
    if finish:
        firsts.append(scanner.finish())
    assert sum(firsts) == int(scanner.first_content) == int(scanner.content_events > 0)
    return Seen(
        scanner.content_events, scanner.usage, scanner.error, scanner.done, at_boundary=boundary
    )


# The reference


def chat_content(event: dict[str, Any]) -> bool:
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        calls = [call["function"] for call in delta.get("tool_calls") or ()]
        if any(delta.get(name) for name in ("content", "reasoning_content", "reasoning")) or any(
            call.get("name") or call.get("arguments") for call in calls
        ):
            return True
    return False


def completions_content(event: dict[str, Any]) -> bool:
    return any(choice.get("text") for choice in event.get("choices", ()))


def messages_content(event: dict[str, Any]) -> bool:
    return bool(event.get("type") == "content_block_delta")


def responses_content(event: dict[str, Any]) -> bool:
    kind = event.get("type", "")
    return bool(kind.startswith("response.") and kind.endswith(".delta"))


ENDS = {
    "message_stop",
    "response.completed",
    "response.incomplete",
    "response.failed",
}


def reference(stream: bytes, is_content: Callable[[dict[str, Any]], bool]) -> Seen:
    seen = Seen()
    name, data, pending = "", [], False
    totals: list[Usage] = []
    lines = re.split(rb"\r\n|\n|\r", stream)
    for number, line in enumerate(lines):
        last = number == len(lines) - 1
        if line:
            field, _, value = line.partition(b":")
            pending = pending or field != b""
            if field == b"data":
                data.append(value.removeprefix(b" "))
            elif field == b"event":
                name = value.strip().decode()
        if last:
            seen.at_boundary = not line and not pending
        if line and not last:
            continue
        if data:
            account(seen, totals, name, b"\n".join(data), is_content)
        if not last:
            name, data, pending = "", [], False
    if totals:
        seen.add(totals[-1])
    return seen


def account(
    seen: Seen,
    totals: list[Usage],
    name: str,
    data: bytes,
    is_content: Callable[[dict[str, Any]], bool],
) -> None:
    if data == b"[DONE]":
        seen.done = True
        return
    event = json.loads(data)
    kind = event.get("type")
    content = is_content(event)
    seen.content_events += content
    seen.done = seen.done or kind in ENDS
    inner = event.get("response") or {}
    error = event.get("error") or inner.get("error")
    if not content and seen.error is None and (error or name == "error" or kind == "error"):
        seen.error = error["type"] if error else "error"
    found = read_usage(event.get("usage") or inner.get("usage"))
    if found is None and kind == "message_start":
        found = read_usage(event["message"].get("usage"))
        found = found and Usage(found.prompt_tokens, None, found.cached_tokens)
    if found is None:
        return
    if content and seen.usage is not None:
        totals.append(found)  # running totals: of those after the first, only the last counts
        return
    if totals:
        seen.add(totals[-1])
        totals.clear()
    seen.add(found)


# Random streams

counts = st.integers(0, 9)
tricky = st.sampled_from(
    [
        "",
        " tok",
        "你好 🌍 é",
        "\n\n",
        "\r",
        'data: {"usage":{}}',
        '"content":"x"',
        "usage",
        "error",
        "[DONE]",
        '"error"',
        "content_block_delta",
        "message_stop",
        "\\",
        '"',
        "\u2028",
    ]
)
texts = st.one_of(tricky, st.text(max_size=8))
openai_usage = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"prompt_tokens": counts, "completion_tokens": counts},
        optional={"prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": counts})},
    ),
)
broken = st.just({"error": {"message": "it broke", "type": "server_error", "code": 500}})
calls = st.lists(
    st.fixed_dictionaries(
        {"index": counts, "function": st.fixed_dictionaries({"name": texts, "arguments": texts})}
    ),
    max_size=2,
)


def choices(delta: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Any]:
    choice = st.fixed_dictionaries(
        {"index": counts, "delta": delta, "finish_reason": st.sampled_from([None, "stop"])}
    )
    return st.lists(choice, max_size=2)


chat_events = st.one_of(
    st.fixed_dictionaries(
        {
            "id": st.just("chatcmpl-1"),
            "choices": choices(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "role": st.sampled_from(["assistant", None]),
                        "content": st.one_of(st.none(), texts),
                        "reasoning_content": texts,
                        "reasoning": texts,
                        "tool_calls": st.one_of(st.none(), calls),
                    },
                )
            ),
        },
        optional={"usage": openai_usage},
    ),
    broken,
)
completions_events = st.one_of(
    st.fixed_dictionaries(
        {"choices": st.lists(st.fixed_dictionaries({"text": texts}), max_size=2)},
        optional={"usage": openai_usage},
    ),
    broken,
)
anthropic_usage = st.fixed_dictionaries(
    {"output_tokens": counts},
    optional={"input_tokens": counts, "cache_read_input_tokens": counts},
)
messages_events = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("message_start"),
            "message": st.fixed_dictionaries(
                {"role": st.just("assistant")} | {"usage": anthropic_usage}
            ),
        }
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("content_block_delta"),
            "delta": st.fixed_dictionaries({"type": st.just("text_delta"), "text": texts}),
        }
    ),
    st.fixed_dictionaries({"type": st.just("message_delta"), "usage": anthropic_usage}),
    st.sampled_from([{"type": kind} for kind in ("ping", "content_block_stop", "message_stop")]),
    st.just({"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
)
final = st.fixed_dictionaries(
    {
        "status": st.just("completed"),
        "usage": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {"input_tokens": counts, "output_tokens": counts},
                optional={"input_tokens_details": st.fixed_dictionaries({"cached_tokens": counts})},
            ),
        ),
    }
)
responses_events = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(
                ["response.output_text.delta", "response.function_call_arguments.delta"]
            ),
            "delta": texts,
        }
    ),
    st.fixed_dictionaries({"type": st.just("response.output_text.done"), "text": texts}),
    st.just({"type": "response.created", "response": {"error": None, "usage": None}}),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["response.completed", "response.incomplete"]),
            "response": final,
        }
    ),
    st.just(
        {"type": "response.failed", "response": {"error": {"type": "server_error", "code": "x"}}}
    ),
)

APIS = {
    "chat": (CHAT, chat_events, chat_content),
    "completions": (COMPLETIONS, completions_events, completions_content),
    "messages": (MESSAGES, messages_events, messages_content),
    "responses": (RESPONSES, responses_events, responses_content),
}


@st.composite
def streams(draw: st.DrawFn, events: st.SearchStrategy[dict[str, Any]]) -> bytes:
    """A stream with the liberties that the grammar allows."""
    # Never CR before LF: the two would be one line end.
    ends = draw(st.sampled_from([["\n"], ["\r\n"], ["\r"], ["\n", "\r\n"], ["\r", "\r\n"]]))
    plain = draw(st.booleans())

    def end() -> str:
        return ends[0] if len(ends) == 1 else draw(st.sampled_from(ends))

    out = []
    for event in draw(st.lists(events, max_size=6)):
        compact = plain or draw(st.booleans())
        body = json.dumps(
            event,
            ensure_ascii=draw(st.booleans()),
            separators=(",", ":") if compact else (", ", ": "),
        )
        if not plain and draw(st.booleans()):
            out.append(
                ': comment data: "content":"x"' + end() + (end() if draw(st.booleans()) else "")
            )
        if not plain and draw(st.booleans()):
            out.append("id: 7" + end())
        name = event.get("type")
        if name and (plain or draw(st.booleans())):
            out.append(f"event: {name}" + end())
        colon = draw(st.sampled_from(["data: ", "data:"]))
        if not plain and draw(st.booleans()):
            body = json.dumps(event, indent=1)
        out.extend(colon + line + end() for line in body.split("\n"))
        out.append(end())
    if draw(st.booleans()):
        out.append("data: [DONE]" + end() + end())
    # JSON text may hold line separators that str.splitlines() knows; the grammar does not.
    stream = "".join(out).encode()
    return stream[: len(stream) - draw(st.sampled_from([0, 0, 1, 2]))] if out else stream


def split_at(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[a:b] for a, b in pairwise(places)]


@pytest.mark.parametrize("api", APIS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_split_gives_what_a_line_reader_gives(api: str, data: st.DataObject) -> None:
    grammar, events, is_content = APIS[api]
    stream = data.draw(streams(events))
    expected = reference(stream, is_content)
    assert seen_by(grammar, [stream]) == expected
    assert seen_by(grammar, split_at(stream, data.draw(st.lists(st.integers(0, 5000))))) == expected
    assert seen_by(grammar, [stream[i : i + 1] for i in range(len(stream))]) == expected


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200)), st.sampled_from(list(APIS)))
def test_any_bytes_do_no_harm(stream: bytes, cuts: list[int], api: str) -> None:
    grammar = APIS[api][0]
    assert seen_by(grammar, split_at(stream, cuts)) == seen_by(grammar, [stream])


fragments = st.sampled_from(
    [
        b"\n",
        b"\n\n",
        b"\r\n",
        b"\r",
        b"data:",
        b"data: {",
        b"event: error",
        b"event:x",
        b": c",
        b'"content":"a"',
        b'"content":""',
        b'"content":"',
        b'"usage":{"prompt_tokens":1}',
        b"}",
        b'"usage":null',
        b'"usage": null',
        b'"error"',
        b"[DONE]",
        b",",
        b"datum",
        b"data",
    ]
)


@settings(max_examples=500, deadline=None)
@given(st.lists(fragments, max_size=14), st.lists(st.integers(0, 300)))
def test_malformed_streams_do_not_depend_on_the_split(pieces: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(pieces)
    whole = seen_by(CHAT, [stream])
    assert seen_by(CHAT, split_at(stream, cuts)) == whole
    assert seen_by(CHAT, [stream[i : i + 1] for i in range(len(stream))]) == whole
    assert seen_by(CHAT, pieces) == whole


# Single facts


def chunk(**delta: Any) -> bytes:
    event = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], "usage": None}
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


@pytest.mark.parametrize(
    "early",
    [
        b": keep-alive\n\n",
        chunk(role="assistant", content=""),
        chunk(),
        b"event: ping\ndata: {}\n\n",
        b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":0}}\n\n',
    ],
)
def test_what_is_not_content_is_not_the_first_token(early: bytes) -> None:
    scanner = StreamScanner(CHAT)
    assert scanner.feed(early) is False
    assert scanner.feed(chunk(content=" a")) is True
    assert scanner.feed(chunk(content=" b")) is False
    assert scanner.content_events == 2


@pytest.mark.parametrize(
    "delta",
    [
        {"content": "x"},
        {"reasoning_content": "x"},
        {"reasoning": "x"},
        {"refusal": "x"},
        {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"'}}]},
    ],
)
def test_every_kind_of_generated_content_counts(delta: dict[str, Any]) -> None:
    assert StreamScanner(CHAT).feed(chunk(**delta)) is True


def test_an_event_split_over_reads_counts_once_and_where_it_ends() -> None:
    scanner = StreamScanner(CHAT)
    event = chunk(content="你好")
    assert [scanner.feed(event[i : i + 1]) for i in range(len(event))].index(True) == len(event) - 1
    assert scanner.tokens == 1


def test_several_events_in_one_read() -> None:
    scanner = StreamScanner(CHAT)
    assert scanner.feed(chunk(content="a") * 3 + chunk(content="b")[:20]) is True
    assert scanner.tokens == 3
    assert not scanner.at_boundary
    scanner.feed(chunk(content="b")[20:])
    assert scanner.tokens == 4
    assert scanner.at_boundary


def test_named_event_after_another_without_its_data() -> None:
    scanner = StreamScanner(CHAT)
    scanner.feed(b'data: {"a":1}\n\nevent: x')
    assert not scanner.at_boundary


def test_reported_usage_replaces_the_count() -> None:
    scanner = StreamScanner(CHAT)
    scanner.feed(chunk(content="a"))
    scanner.feed(chunk(content="b"))
    assert scanner.tokens == 2
    scanner.feed(b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":5}}\n\n')
    assert scanner.tokens == 5
    assert scanner.usage == Usage(9, 5, None)


def test_running_totals_are_counted_once() -> None:
    scanner = StreamScanner(CHAT)
    for total in range(1, 6):
        event = {
            "choices": [{"delta": {"content": "x"}}],
            "usage": {
                "prompt_tokens": 7,
                "completion_tokens": total,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
        }
        scanner.feed(f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode())
    assert scanner.content_events == 5
    assert scanner.usage == Usage(7, 5, 4)


def test_anthropic_counts_come_in_two_parts() -> None:
    scanner = StreamScanner(MESSAGES)
    head = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 1}
    start = {"type": "message_start", "message": {"usage": head}}
    scanner.feed(f"event: message_start\ndata: {json.dumps(start)}\n\n".encode())
    for _ in range(3):
        scanner.feed(b'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n')
    assert scanner.tokens == 3  # what was sent, should the stream break off here
    assert scanner.usage == Usage(100, None, 90)
    scanner.feed(
        b'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":4}}\n\n'
    )
    scanner.feed(b'event: message_stop\ndata: {"type":"message_stop"}\n\n')
    assert scanner.usage == Usage(100, 4, 90)
    assert scanner.done


@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
def test_terminal_responses_events_report_usage(kind: str) -> None:
    scanner = StreamScanner(RESPONSES)
    event = {
        "type": f"response.{kind}",
        "response": {
            "error": {"code": "server_error"} if kind == "failed" else None,
            "usage": {
                "input_tokens": 8,
                "output_tokens": 3,
                "input_tokens_details": {"cached_tokens": 2},
            },
        },
    }
    scanner.feed(f"event: response.{kind}\ndata: {json.dumps(event)}\n\n".encode())
    assert scanner.done
    assert scanner.usage == Usage(8, 3, 2)
    assert scanner.error == ("server_error" if kind == "failed" else None)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (
            b'data: {"error":{"message":"secret","type":"BadRequestError","code":400}}',
            "BadRequestError",
        ),
        (b'data: {"error":{"message":"secret","type":null,"code":"overloaded"}}', "overloaded"),
        (b'data: {"error":"secret"}', "error"),
        (b'data: {"object":"error","message":"secret","type":"Internal","code":500}', "Internal"),
        (
            b'event: error\ndata: {"type":"error","code":"server_error","message":"secret"}',
            "server_error",
        ),
        (b"event: error\ndata: secret", "error"),
        (b'data: {"error":null}', None),
        (b'data: {"choices":[{"delta":{"content":"error"}}]}', None),
        (b"event: error", None),
    ],
)
def test_error_events_are_known_by_type_and_never_by_text(event: bytes, error: str | None) -> None:
    scanner = StreamScanner(CHAT)
    scanner.feed(event + b"\n\n")
    assert scanner.error == error


def test_the_first_error_is_kept_and_bounded() -> None:
    scanner = StreamScanner(CHAT)
    scanner.feed(
        b'data: {"error":{"type":"%b"}}\n\ndata: {"error":{"type":"b"}}\n\n' % (b"a" * 900)
    )
    assert scanner.error == "a" * 64


def test_an_unknown_route_counts_events_but_not_errors() -> None:
    scanner = StreamScanner(UNKNOWN)
    assert scanner.feed(b'data: {"text":"a"}\n\n') is True
    scanner.feed(b'data: {"error":{"type":"broken"}}\n\ndata: [DONE]\n\n')
    assert (scanner.tokens, scanner.error, scanner.done) == (1, "broken", True)


@pytest.mark.parametrize(
    ("stream", "at_boundary"),
    [
        (b"", True),
        (b"data: {}\n\n", True),
        (b"data: {}\r\n\r", True),
        (b"data: {}\r\r", True),
        (b"data: {}\n", False),
        (b"data: {}", False),
        (b"event: x\n", False),
        (b": comment", False),
        (b": comment\n", True),
        (b"data: {}\n\n\n", True),
    ],
)
def test_boundary(stream: bytes, at_boundary: bool) -> None:
    assert seen_by(CHAT, [stream], finish=False).at_boundary is at_boundary


def test_an_oversized_event_is_skipped_and_not_kept() -> None:
    scanner = StreamScanner(CHAT)
    piece = b"x" * 65536
    scanner.feed(b'data: {"choices":[{"delta":{"content":"')
    for _ in range(4 * MAX_EVENT // len(piece)):
        scanner.feed(piece)
        assert len(scanner._partial) <= MAX_EVENT
    assert not scanner.at_boundary
    scanner.feed(b'"}}]}\n\n')
    assert (scanner.tokens, scanner.at_boundary) == (0, True)
    assert scanner.feed(chunk(content="a")) is True


def test_an_oversized_event_is_skipped_however_it_is_split() -> None:
    lines = [b"data: " + b"x" * (MAX_EVENT // 2)] * 2 + [b": c", b'data: "content":"a"']
    stream = b"\n".join(lines) + b"\n\n" + chunk(content="a")
    cuts = [MAX_EVENT // 2 + 6, MAX_EVENT + 20, MAX_EVENT + 21, MAX_EVENT + 22, MAX_EVENT + 23]
    assert seen_by(CHAT, split_at(stream, cuts)) == seen_by(CHAT, [stream]) == Seen(1)


def test_how_an_oversized_line_began_is_remembered() -> None:
    scanner = StreamScanner(CHAT)
    scanner.feed(b"data: " + b"x" * MAX_EVENT)
    scanner.feed(b": not a comment")
    scanner.feed(b"\n")
    assert not scanner.at_boundary


def test_a_cr_inside_what_looks_like_one_line() -> None:
    assert seen_by(CHAT, [b'data: {}\r: "content":"a"\n\n']) == Seen(0)
