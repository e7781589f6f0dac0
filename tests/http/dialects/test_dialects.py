"""Every dialect: what it reads from a body, what it refuses, how it spells errors."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.dialects.base import BadRequest
from gateway.http.dialects.key import MEDIA_BYTES
from gateway.http.dialects.registry import NAMES, dialect_for
from gateway.http.dialects.usage import Usage
from gateway.http.errors import Malformed
from gateway.http.sse import StreamScanner
from gateway.types import Prompt

JSON = "application/json"
JSON_PATHS = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
    "/v1/messages",
]
STREAMED = JSON_PATHS[:3] + JSON_PATHS[-1:]


def parse(path: str, body: Any, content_type: str = JSON) -> Prompt:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return dialect_for("POST", path).parse(raw, content_type)


def refusal(path: str, body: Any, content_type: str = JSON) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        parse(path, body, content_type)
    return caught.value


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("POST", "/v1/chat/completions", "openai-chat"),
        ("POST", "/v1/completions", "openai-completions"),
        ("POST", "/v1/responses", "openai-responses"),
        ("POST", "/v1/embeddings", "openai-embeddings"),
        ("POST", "/v1/rerank", "rerank"),
        ("POST", "/v2/rerank", "rerank"),
        ("POST", "/rerank", "rerank"),
        ("POST", "/v1/score", "rerank"),
        ("POST", "/score", "rerank"),
        ("POST", "/v1/messages", "anthropic-messages"),
        ("GET", "/v1/messages", "anthropic-passthrough"),
        ("POST", "/v1/messages/count_tokens", "anthropic-passthrough"),
        ("POST", "/v1/messagesque", "passthrough"),
        ("POST", "/v1/responses/input_tokens", "passthrough"),
        ("GET", "/v1/responses/resp_1", "passthrough"),
        ("GET", "/v1/chat/completions", "passthrough"),
        ("POST", "/v1/audio/transcriptions", "passthrough"),
        ("POST", "/inference/v1/generate", "generate"),
        ("POST", "/generate", "generate"),
        ("POST", "/generate_stream", "generate"),
        ("POST", "/completion", "generate"),
        ("POST", "/api/chat", "ollama"),
        ("POST", "/api/generate", "ollama"),
        ("POST", "/v2/chat", "cohere-chat"),
        ("POST", "/cohere/v2/chat", "cohere-chat"),
        ("POST", "/api/embed", "passthrough"),
        ("DELETE", "/v1/responses/resp_1", "passthrough"),
        ("POST", "/tokenize", "passthrough"),
    ],
)
def test_registry(method: str, path: str, name: str) -> None:
    assert dialect_for(method, path).name == name
    assert name in NAMES


@pytest.mark.parametrize("path", JSON_PATHS)
@pytest.mark.parametrize(
    ("body", "code", "shown"),
    [
        (b"", "empty_body", "empty"),
        (b"  ", "empty_body", "empty"),
        (b'{"model":', "invalid_json", "not valid JSON"),
        (b'{"model":"m"} x', "invalid_json", "not valid JSON"),
        (b'{"model":"\xff"}', "invalid_json", "not valid JSON"),
        (b"[1]", "invalid_json", "an array"),
        (b'"m"', "invalid_json", "a string"),
        (b"null", "invalid_json", "null"),
        (b"{}", "missing_required_parameter", "'model' is missing"),
        (b'{"model":null}', "missing_required_parameter", "'model' is missing"),
        (b'{"model":7}', "invalid_type", "'model' is a number"),
        (b'{"model":["m"]}', "invalid_type", "'model' is an array"),
        (b'{"model":true}', "invalid_type", "'model' is a boolean"),
        (b'{"model":{}}', "invalid_type", "'model' is an object"),
        (b'{"model":""}', "invalid_value", "'model' is an empty string"),
        (b'{"model":"a\\nb"}', "invalid_value", "unprintable"),
        (b'{"model":"\\ud800"}', "invalid_value", "unprintable"),
        (b'{"model":"m","x":' + b"[" * 100_000, "invalid_json", "nested too deeply"),
        (b'{"model":"m","messages":' + b"[" * 100_000, "invalid_json", "nested too deeply"),
        (b"[" * 100_000, "invalid_json", "an array|nested too deeply|not valid"),
    ],
)
def test_bodies_that_no_engine_could_read(path: str, body: bytes, code: str, shown: str) -> None:
    error = refusal(path, body)
    assert error.status == 400
    assert error.code == code
    assert any(part in str(error) for part in shown.split("|"))
    assert error.param == (
        "model" if code.startswith(("missing", "invalid_t", "invalid_v")) else None
    )


@pytest.mark.parametrize("path", JSON_PATHS)
def test_content_types(path: str) -> None:
    for content_type in (JSON, "", "Application/JSON; charset=utf-8", "application/x+json"):
        assert parse(path, {"model": "m"}, content_type).model == "m"
    assert refusal(path, {"model": "m"}, "text/plain").status == 415


@pytest.mark.parametrize("path", JSON_PATHS)
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","temperature":NaN}',
        b'{"model":"m","user":"\\ud800"}',
        b'\xef\xbb\xbf{"model":"m"}',
        b'{"model":"x","model":"m"}',
        b'{"model":"m","seed":123456789012345678901234567890,"t":1e999}',
    ],
)
def test_json_that_engines_take(path: str, body: bytes) -> None:
    assert parse(path, body).model == "m"


def test_unpaired_surrogates_have_a_key() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"a\\ud800"}],"tools":["\\udc00"]}'
    assert b"a\xed\xa0\x80" in parse("/v1/chat/completions", body).key


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "type", "text", "name", "tool_calls", "source", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
MEMBERS = [
    *("messages", "system", "tools", "prompt", "input", "instructions", "query", "documents"),
    *("stream", "max_tokens", "max_completion_tokens", "cache_salt", "reasoning", "input_ids"),
    *("lora", "chat_template_kwargs", "text_1", "data_2", "queries", "items"),
]


@given(
    st.sampled_from(JSON_PATHS),
    st.dictionaries(st.sampled_from(MEMBERS), json_values, max_size=6),
)
def test_no_member_of_any_shape_is_refused(path: str, members: dict[str, Any]) -> None:
    prompt = parse(path, {"model": "m", **members})
    assert prompt.model == "m"
    assert prompt.prompt_bytes >= len(prompt.key)
    assert prompt == parse(path, {"model": "m", **members})


@given(st.sampled_from([*JSON_PATHS, "/other"]), st.binary(max_size=60))
def test_no_bytes_crash(path: str, body: bytes) -> None:
    with suppress(BadRequest):
        parse(path, body)


@pytest.mark.parametrize("path", STREAMED)
def test_stream_flag(path: str) -> None:
    assert parse(path, {"model": "m", "stream": True}).stream is True
    assert parse(path, {"model": "m", "stream": "x"}).stream is False
    assert parse(path, {"model": "m"}).stream is False


@pytest.mark.parametrize(
    ("path", "members", "cap"),
    [
        ("/v1/chat/completions", {"max_tokens": 5}, 5),
        ("/v1/chat/completions", {"max_tokens": 5, "max_completion_tokens": 6}, 6),
        ("/v1/chat/completions", {"max_tokens": 5, "max_completion_tokens": None}, 5),
        ("/v1/chat/completions", {"max_tokens": "5"}, None),
        ("/v1/chat/completions", {"max_tokens": -1}, None),
        ("/v1/chat/completions", {"max_tokens": True}, None),
        ("/v1/completions", {"max_tokens": 5}, 5),
        ("/v1/responses", {"max_output_tokens": 5}, 5),
        ("/v1/chat/completions", {"max_tokens": 10**400}, 1 << 53),
        ("/v1/messages", {"max_tokens": 5}, 5),
    ],
)
def test_output_cap(path: str, members: dict[str, Any], cap: int | None) -> None:
    assert parse(path, {"model": "m", **members}).max_output_tokens == cap


@pytest.mark.parametrize("path", JSON_PATHS)
def test_only_some_routes_generate(path: str) -> None:
    assert parse(path, {"model": "m"}).generates is (path in STREAMED)


# Namespaces


@pytest.mark.parametrize("path", JSON_PATHS)
@pytest.mark.parametrize(
    "member", ["cache_salt", "extra_key", "lora_path", "lora_request", "lora", "adapter_id"]
)
def test_namespaces_part_adapters_and_salts(path: str, member: str) -> None:
    def namespace(**members: Any) -> bytes:
        return parse(path, {"model": "m", **members}).namespace

    assert namespace() == namespace(**{member: ""}) == namespace(**{member: None})
    assert len({namespace(), namespace(**{member: "a"}), namespace(**{member: "b"})}) == 3
    assert namespace(model="n") != namespace()


def test_no_two_namespaces_are_confused() -> None:
    bodies: list[dict[str, Any]] = [
        {"model": "a"},
        {"model": "ab"},
        {"model": "a", "cache_salt": "b"},
        {"model": "a", "extra_key": "b"},
        {"model": "a", "cache_salt": "b", "extra_key": "c"},
        {"model": "a", "cache_salt": ["b"]},
        {"model": "a:b"},
    ]
    assert len({parse("/v1/completions", body).namespace for body in bodies}) == len(bodies)


def test_token_ids_and_text_never_share_cache() -> None:
    ids = parse("/v1/completions", {"model": "m", "prompt": [0x64636261]})
    text = parse("/v1/completions", {"model": "m", "prompt": "abcd"})
    assert ids.key == text.key
    assert ids.namespace != text.namespace


# Keys by dialect


def test_chat_messages_and_responses_share_one_key() -> None:
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    keys = {
        parse("/v1/chat/completions", {"model": "m", "messages": chat}).key,
        parse("/v1/messages", {"model": "m", "system": "s", "messages": chat[1:]}).key,
        parse(
            "/v1/messages",
            {"model": "m", "system": [{"type": "text", "text": "s"}], "messages": chat[1:]},
        ).key,
        parse("/v1/responses", {"model": "m", "instructions": "s", "input": "hi"}).key,
        parse("/v1/responses", {"model": "m", "instructions": "s", "input": chat[1:]}).key,
        parse("/v1/embeddings", {"model": "m", "messages": chat}).key,
    }
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("path", "member", "first"),
    [
        ("/v1/chat/completions", "messages", {"role": "user", "content": "one"}),
        (
            "/v1/messages",
            "messages",
            {"role": "user", "content": [{"type": "text", "text": "one"}]},
        ),
        ("/v1/responses", "input", {"role": "user", "content": "one"}),
    ],
)
def test_the_second_turn_extends_the_first(path: str, member: str, first: dict[str, Any]) -> None:
    more = [{"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    earlier = parse(path, {"model": "m", member: [first]})
    later = parse(path, {"model": "m", member: [first, *more], "stream": True})
    assert earlier.key
    assert later.key.startswith(earlier.key)
    assert later.namespace == earlier.namespace


@pytest.mark.parametrize(
    "member", ["chat_template", "chat_template_kwargs", "documents", "reasoning_effort", "tools"]
)
def test_what_changes_the_rendering_changes_the_key(member: str) -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    plain = parse("/v1/chat/completions", body).key
    other = parse("/v1/chat/completions", {**body, member: ["x"]}).key
    assert other != plain
    assert other.endswith(plain)


def test_what_changes_only_the_end_does_not() -> None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    plain = parse("/v1/chat/completions", body)
    assert parse("/v1/chat/completions", {**body, "add_generation_prompt": False}) == plain


def test_a_tokenized_chat_is_keyed_by_its_ids() -> None:
    prompt = parse("/v1/chat/completions", {"model": "m", "messages": [], "input_ids": [1, 2]})
    assert prompt.key == b"\1\0\0\0\2\0\0\0"


@pytest.mark.parametrize(
    ("path", "member"), [("/v1/completions", "prompt"), ("/v1/embeddings", "input")]
)
def test_batches_count_whole_and_are_keyed_by_their_first(path: str, member: str) -> None:
    def prompt(value: Any) -> Prompt:
        return parse(path, {"model": "m", member: value})

    assert prompt(["abc"]) == prompt("abc")
    assert prompt(["abc", "de"]).key == prompt("abc").key
    assert prompt(["abc", "de"]).prompt_bytes == 5
    assert prompt(["abcd", "z"]).key.startswith(prompt(["abc", "de"]).key)
    assert prompt([[1, 2], [3]]).key == prompt([1, 2]).key
    assert prompt([[1, 2], [3]]).prompt_bytes == 12


def test_a_query_is_prefilled_with_each_document() -> None:
    body = {"model": "m", "query": "q" * 10, "documents": ["a" * 5, "b" * 5, "c" * 5]}
    prompt = parse("/v1/rerank", body)
    assert prompt.key.startswith(b"q" * 10)
    assert prompt.prompt_bytes == 3 * 10 + 15
    scored = {"model": "m", "text_1": "q" * 10, "text_2": ["a" * 5, "b" * 5, "c" * 5]}
    assert parse("/v1/score", scored).key == prompt.key


def test_a_picture_is_not_counted_as_text() -> None:
    url = "data:image/png;base64," + "A" * 3_000_000
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    prompt = parse("/v1/chat/completions", body)
    assert MEDIA_BYTES < prompt.prompt_bytes < MEDIA_BYTES + 100


def test_everything_prefilled_is_counted() -> None:
    body = {
        "model": "m",
        "tools": [{"type": "function", "function": {"name": "f", "description": "t" * 10_000}}],
        "messages": [
            {"role": "system", "content": "s" * 20_000},
            {"role": "assistant", "content": "h" * 20_000},
            {"role": "user", "content": "ok"},
        ],
    }
    assert 50_000 < parse("/v1/chat/completions", body).prompt_bytes < 50_200


# Pass-through


@pytest.mark.parametrize(
    ("body", "content_type", "model"),
    [
        (b'{"model":"m","stream":true}', JSON, "m"),
        (b'{"model":"m"}', "", "m"),
        (b'{"model":7}', JSON, ""),
        (b'{"model":', JSON, ""),
        (b"[" * 100_000, JSON, ""),
        (b'{"x":' + b"[" * 100_000, JSON, ""),
        (b"\x00\xff", "application/octet-stream", ""),
        (b"", "", ""),
        (b"anything", "multipart/form-data", ""),
    ],
)
def test_passthrough_refuses_nothing(body: bytes, content_type: str, model: str) -> None:
    prompt = dialect_for("POST", "/tokenize").parse(body, content_type)
    assert (prompt.model, prompt.key) == (model, b"")
    assert prompt.generates is prompt.stream


def form(*fields: tuple[str, bytes], boundary: str = "xYz") -> bytes:
    parts = []
    for disposition, value in fields:
        parts.append(
            b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n"
            % (boundary.encode(), disposition.encode(), value)
        )
    return b"".join(parts) + b"--%b--\r\n" % boundary.encode()


FILE = ('name="file"; filename="model"', b'name="model"\r\n\r\nx' * 300_000)


@pytest.mark.parametrize(
    "fields", [["model", "file"], ["file", "model"], ["file", "model", "file"]]
)
@pytest.mark.parametrize("boundary", ["xYz", "----WebKitFormBoundary7MA4YWxkTrZu0gW"])
def test_multipart_model_first_or_last(fields: list[str], boundary: str) -> None:
    known = {"model": ('name="model"', b"whisper"), "file": FILE}
    order = [known[name] for name in fields]
    if fields == ["file", "model", "file"]:
        order[-1] = ('name="file"; filename="b"', b"x")
    body = form(*order, ('name="stream"', b"true"), boundary=boundary)
    prompt = parse(
        "/v1/audio/transcriptions",
        body,
        f'multipart/form-data; charset=utf-8; boundary="{boundary}"',
    )
    assert prompt.model == "whisper"
    assert prompt.stream is True


def test_multipart_small_form_with_other_fields() -> None:
    body = form(('name="prompt"', b"model"), ("name=model", b"whisper"), ('name="x"', b""))
    prompt = parse("/v1/audio/transcriptions", body, "multipart/form-data; boundary=xYz")
    assert (prompt.model, prompt.stream) == ("whisper", False)


ALLOWED, OTHER = ('name="model"', b"allowed"), ('name = "model"', b"other")
HIDING = (
    'name="file"; filename="b"',
    b'x--xYz\r\ncontent-disposition: form-data; name="stream"\r\n--xYz\r\n' * 2,
)


@pytest.mark.parametrize(
    "fields",
    [
        [ALLOWED, OTHER],
        [ALLOWED, FILE, OTHER, FILE],
        [FILE, OTHER, FILE, ALLOWED],
        [ALLOWED, HIDING, OTHER],
    ],
    ids=["at once", "in the middle", "before", "behind what looks like fields"],
)
def test_a_form_that_names_two_models_is_refused(fields: list[tuple[str, bytes]]) -> None:
    # Which one counts is the engine's choice, so a key's models would hold for neither.
    with pytest.raises(Malformed, match="more than one model"):
        parse("/v1/audio/transcriptions", form(*fields), "multipart/form-data; boundary=xYz")


def test_a_model_that_is_named_twice_alike_is_one() -> None:
    prompt = parse("/v1/x", form(ALLOWED, FILE, ALLOWED), "multipart/form-data; boundary=xYz")
    assert prompt.model == "allowed"


def test_a_form_of_too_many_parts_is_refused() -> None:
    body = form(*[('name="x"', b"")] * 1001)
    with pytest.raises(Malformed, match="1000 parts"):
        parse("/v1/x", body, "multipart/form-data; boundary=xYz")


def test_a_file_is_not_a_field() -> None:
    body = form(('name="upload"; filename="model"', b"whisper"))
    assert parse("/v1/files", body, "multipart/form-data; boundary=xYz").model == ""


@given(st.binary(max_size=200))
def test_multipart_of_any_bytes(body: bytes) -> None:
    parse("/v1/audio/transcriptions", b"--b" + body, "multipart/form-data; boundary=b")


# Errors, usage, scanners


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/rerank", "/tokenize"]
)
def test_openai_errors(path: str) -> None:
    body = dialect_for("POST", path).error(
        404, "no such model", type="invalid_request_error", code="model_not_found", param="model"
    )
    assert json.loads(body) == {
        "error": {
            "message": "no such model",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (404, "not_found_error"),
        (413, "request_too_large"),
        (415, "invalid_request_error"),
        (429, "rate_limit_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_anthropic_errors(path: str, status: int, kind: str) -> None:
    body = dialect_for("POST", path).error(status, "no", type="x", code="y", param=None)
    assert json.loads(body) == {"type": "error", "error": {"type": kind, "message": "no"}}


@pytest.mark.parametrize("path", [*JSON_PATHS, "/tokenize", "/v1/messages/count_tokens"])
def test_error_events_are_whole_and_seen_by_the_scanner(path: str) -> None:
    dialect = dialect_for("POST", path)
    event = dialect.error_event(502, 'it "broke"\n\nhere', type="upstream_error", code="reset")
    assert event.endswith(b"\n\n")
    assert event.count(b"\n\n") == 1
    scanner = dialect.scanner()
    scanner.feed(event)
    assert scanner.error in ("upstream_error", "api_error")
    assert scanner.at_boundary
    assert not scanner.first_content
    named = dialect.name.startswith("anthropic") or dialect.name == "openai-responses"
    assert event.startswith(b"event: error\ndata: " if named else b"data: ")


@pytest.mark.parametrize(
    ("path", "reported", "usage"),
    [
        (
            "/v1/chat/completions",
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "prompt_tokens_details": {"cached_tokens": 4},
            },
            Usage(9, 2, 4),
        ),
        (
            "/v1/completions",
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": None},
            Usage(9, 2, None),
        ),
        (
            "/v1/responses",
            {
                "input_tokens": 9,
                "output_tokens": 2,
                "input_tokens_details": {"cached_tokens": 0},
            },
            Usage(9, 2, 0),
        ),
        (
            "/v1/messages",
            {
                "input_tokens": 3,
                "cache_read_input_tokens": 5,
                "cache_creation_input_tokens": 1,
                "output_tokens": 2,
            },
            Usage(9, 2, 5),
        ),
        ("/v1/embeddings", {"prompt_tokens": 9, "total_tokens": 9}, Usage(9, None, None)),
        ("/v1/rerank", {"total_tokens": 9}, Usage(9, None, None)),
        ("/v1/chat/completions", {}, None),
        ("/v1/chat/completions", None, None),
        ("/v1/chat/completions", {"prompt_tokens": "9"}, None),
    ],
)
def test_usage_of_whole_answers(path: str, reported: Any, usage: Usage | None) -> None:
    body = json.dumps({"id": "x", "choices": [{"text": "y"}], "usage": reported}).encode()
    assert dialect_for("POST", path).usage(body) == usage


@pytest.mark.parametrize("body", [b"", b"[]", b'{"usage":', b"\xff", b"[" * 100_000])
def test_usage_of_answers_that_cannot_be_read(body: bytes) -> None:
    assert dialect_for("POST", "/v1/chat/completions").usage(body) is None


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'),
        ("/v1/completions", b'data: {"choices":[{"text":"a"}]}\n\n'),
        ("/v1/responses", b'data: {"type":"response.output_text.delta","delta":"a"}\n\n'),
        ("/v1/messages", b'data: {"type":"content_block_delta","delta":{"text":"a"}}\n\n'),
        ("/anything", b'data: {"text":"a"}\n\n'),
    ],
)
def test_each_dialect_knows_its_own_content(path: str, event: bytes) -> None:
    dialect = dialect_for("POST", path)
    scanner = dialect.scanner()
    assert isinstance(scanner, StreamScanner)
    assert scanner.feed(event) is True
    assert dialect.ends_with_marker is (path in STREAMED)
