"""Properties of the prompt key."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.dialects.key import MEDIA_BYTES, messages_key, prompt_key

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "critic"])
content = st.one_of(
    st.text(max_size=8),
    st.none(),
    st.lists(
        st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=4)}), max_size=3
    ),
)
messages = st.fixed_dictionaries(
    {"role": roles, "content": content},
    optional={
        "name": st.text(max_size=3),
        "tool_call_id": st.text(max_size=3),
        "reasoning_content": st.text(max_size=3),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {
                    "id": st.text(max_size=3),
                    "function": st.fixed_dictionaries(
                        {"name": st.text(max_size=3), "arguments": st.text(max_size=3)}
                    ),
                }
            ),
            max_size=2,
        ),
    },
)


@given(st.lists(messages), st.lists(messages), json_values)
def test_a_later_turn_extends_the_key(
    turn: list[dict[str, Any]], more: list[dict[str, Any]], tools: Any
) -> None:
    earlier = messages_key(turn, tools=tools, system="s")
    assert messages_key(turn + more, tools=tools, system="s").startswith(earlier)


plain = st.lists(st.fixed_dictionaries({"role": roles, "content": st.text(max_size=3)}), max_size=3)


@given(plain, plain)
def test_different_conversations_have_different_keys(
    one: list[dict[str, str]], other: list[dict[str, str]]
) -> None:
    assert (messages_key(one) == messages_key(other)) == (one == other)


@given(json_values, json_values, json_values, json_values)
def test_no_shape_fails(messages: Any, system: Any, tools: Any, option: Any) -> None:
    messages_key(messages, system=system, tools=tools, options=[("x", option)])
    messages_key([messages], system=[system])
    messages_key([{"role": "user", "content": messages, "tool_calls": tools, "name": system}])
    messages_key(
        [{"role": "user", "content": [{"type": "image_url", "image_url": option}, messages]}]
    )
    messages_key([{"type": "function_call_output", "call_id": system, "output": messages}])
    assert prompt_key(messages).size >= len(prompt_key(messages).key)


def user(content: Any, **more: Any) -> bytes:
    return messages_key([{"role": "user", "content": content, **more}])


def assistant(**members: Any) -> bytes:
    return messages_key([{"role": "assistant", **members}])


def test_message_boundaries_and_roles_count() -> None:
    keys = [
        messages_key([{"role": "user", "content": "ab"}, {"role": "user", "content": "c"}]),
        messages_key([{"role": "user", "content": "a"}, {"role": "user", "content": "bc"}]),
        messages_key([{"role": "user", "content": "abc"}]),
        messages_key([{"role": "assistant", "content": "abc"}]),
        messages_key([{"role": "user", "content": [{"text": "a"}, {"text": "bc"}]}]),
    ]
    assert all(one != other for one, other in combinations(keys, 2))


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_an_array_of_text_is_text(kind: str) -> None:
    assert user([{"type": kind, "text": "hi"}]) == user("hi")
    marked = {"type": kind, "text": "hi", "cache_control": {"type": "ephemeral"}}
    assert user([marked]) == user("hi")


def test_member_order_and_shape_of_a_message_do_not_matter() -> None:
    assert messages_key([{"content": "hi", "role": "user"}]) == user("hi")
    assert user("hi", metadata={"x": 1}) == user("hi")


@pytest.mark.parametrize(
    "members",
    [
        {"content": "x", "name": "ann"},
        {"content": "x", "reasoning_content": "so"},
        {"content": "x", "reasoning": "so"},
        {"content": [{"type": "thinking", "thinking": "so", "signature": "s"}, {"text": "x"}]},
        {"content": [{"type": "redacted_thinking", "data": "so"}, {"text": "x"}]},
        {"content": "x", "tool_call_id": "call-1"},
        {"content": "x", "refusal": "no"},
        {"content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"content": "x", "function_call": {"name": "f", "arguments": "{}"}},
        {"content": [{"text": "x"}, {"type": "tool_use", "name": "f", "input": {}}]},
        {"content": [{"text": "x"}, {"type": "novel", "value": 1}]},
    ],
)
def test_what_a_template_renders_is_in_the_key(members: dict[str, Any]) -> None:
    assert assistant(**members) != assistant(content="x")


def test_tool_calls_differ_by_name_and_arguments() -> None:
    def call(name: str, arguments: str) -> bytes:
        return assistant(
            content=None, tool_calls=[{"function": {"name": name, "arguments": arguments}}]
        )

    keys = [call("f", "{}"), call("g", "{}"), call("f", '{"a":1}')]
    assert all(one != other for one, other in combinations(keys, 2))


def test_tools_and_options_come_first() -> None:
    turn = [{"role": "user", "content": "hi"}]
    key = messages_key(turn, tools=[{"name": "f"}], system="s", options=[("documents", ["d"])])
    assert [
        key.index(piece) for piece in (b"documents", b'{"name":"f"}', b"system", b"hi")
    ] == sorted(key.index(piece) for piece in (b"documents", b'{"name":"f"}', b"system", b"hi"))
    assert key.endswith(messages_key(turn))


def test_tool_members_keep_their_order() -> None:
    assert messages_key([], tools=[{"b": 1, "a": 2}]) != messages_key([], tools=[{"a": 2, "b": 1}])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,{}", "detail": "low"}},
        {"type": "image_url", "image_url": "data:image/png;base64,{}"},
        {"type": "input_image", "image_url": "data:image/png;base64,{}"},
        {"type": "input_audio", "input_audio": {"data": "{}", "format": "wav"}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "{}"}},
        {"type": "document", "source": {"type": "base64", "data": "{}"}},
        {"type": "file", "file": {"file_data": "{}", "filename": "a.pdf"}},
        {"type": "input_file", "file_data": "{}"},
        {"type": "image_url", "image_url": {"url": "https://example.org/{}.png"}},
    ],
)
def test_media_count_by_digest_and_nominal_size(part: dict[str, Any]) -> None:
    def key(data: str) -> bytes:
        def fill(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: fill(inner) for name, inner in value.items()}
            return value.replace("{}", data)

        return user([fill(part), {"type": "text", "text": "what is this?"}])

    big, other = key("A" * 100_000), key("A" * 99_999 + "B")
    assert big != other
    assert big == key("A" * 100_000)
    assert len(big) == len(other) == len(key("C"))
    assert MEDIA_BYTES < len(big) < MEDIA_BYTES + 64
    assert b"AAAA" not in big


def test_moving_cache_control_changes_nothing() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "AAAA"}}
    novel = {"type": "novel", "value": 1}
    for part in (image, novel):
        assert user([part | {"cache_control": {"type": "ephemeral"}}]) == user([part])


def test_a_plain_text_document_is_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "long" * 5000}
    assert len(user([{"type": "document", "source": source}])) > 20_000


def test_tool_results_keep_their_parts() -> None:
    image = {"type": "image", "source": {"type": "base64", "data": "A" * 9999}}
    key = user([{"type": "tool_result", "tool_use_id": "t1", "content": [{"text": "ok"}, image]}])
    assert b"t1" in key
    assert b"ok" in key
    assert len(key) < MEDIA_BYTES + 64


def test_responses_items() -> None:
    items: list[dict[str, Any]] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "so"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "42"},
        {"type": "web_search_call", "status": "completed"},
    ]
    keys = [messages_key(items[:count]) for count in range(len(items) + 1)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(keys))
    assert len(set(keys)) == len(keys)
    assert keys[1] == user("hi") == messages_key("hi")


@pytest.mark.parametrize(
    ("prompt", "key", "size"),
    [
        ("s", b"s", 1),
        ("é", b"\xc3\xa9", 2),
        (["s"], b"s", 1),
        (["s", "tt"], b"s", 3),
        ([1, 258], b"\x01\0\0\0\x02\x01\0\0", 8),
        ([[1, 258]], b"\x01\0\0\0\x02\x01\0\0", 8),
        ([[1], [2, 3]], b"\x01\0\0\0", 12),
        ("", b"", 0),
        ([], b"", 0),
        ([""], b"", 0),
        ([[]], b"", 0),
        (None, b"", 0),
        (7, b"", 0),
        ({}, b"", 0),
        (["s", 1], b"", 0),
        ([1, "s"], b"", 0),
        ([[1], "s"], b"", 0),
        ([[1, "s"], [2]], b"", 0),
        ([1.5], b"", 0),
        ([-1], b"", 0),
        ([2**40], b"", 0),
    ],
)
def test_prompts(prompt: Any, key: bytes, size: int) -> None:
    found = prompt_key(prompt)
    assert (found.key, found.size) == (key, size)
