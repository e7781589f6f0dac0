"""Any body that a client may send: a prompt, or an error of the client's."""

from __future__ import annotations

import contextlib
import gzip
import json
import zlib

from hypothesis import given
from hypothesis import strategies as st

from gateway.http.dialects.registry import dialect_for
from gateway.http.errors import Malformed, RequestError, TooLarge
from gateway.http.inflate import inflate
from gateway.prefix.blocks import BlockScale
from gateway.types import Prompt
from tests.fuzz.effort import effort
from tests.fuzz.mutations import mutated

PATHS = (
    *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank"),
    *("/v1/score", "/v1/messages", "/v1/messages/count_tokens", "/v1/other"),
)
MEMBERS = (
    *("model", "messages", "prompt", "input", "system", "tools", "tool_calls", "content", "role"),
    *(
        "stream",
        "max_tokens",
        "priority",
        "cache_salt",
        "type",
        "text",
        "image_url",
        "url",
        "query",
    ),
    *("documents", "input_ids", "metadata", "lora_path"),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["m", "user", "text", "system", "\ud800", "x" * 3000]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(MEMBERS) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=15,
)
bodies = st.dictionaries(st.sampled_from(MEMBERS), values, max_size=6)


def read(path: str, body: bytes) -> Prompt | None:
    refusal = None
    try:
        prompt = dialect_for("POST", path).parse(body, "application/json")
    except RequestError as error:
        refusal = error
    if refusal is not None:
        assert refusal.status == 400
        assert str(refusal)
        return None
    assert prompt.prompt_bytes >= 0
    BlockScale().chain(prompt.namespace, prompt.key)
    return prompt


@effort(300)
@given(st.sampled_from(PATHS), values | bodies, st.booleans())
def test_any_json(path: str, body: object, escaped: bool) -> None:
    text = json.dumps(body, ensure_ascii=escaped)
    read(path, text.encode("utf-8", "surrogatepass"))


@effort(300)
@given(st.sampled_from(PATHS), bodies, st.data())
def test_nearly_json(path: str, body: object, data: st.DataObject) -> None:
    whole = json.dumps({"model": "m", **body} if isinstance(body, dict) else body)
    read(path, data.draw(mutated(whole.encode())))


@effort(60)
@given(
    st.sampled_from(PATHS),
    st.sampled_from(MEMBERS),
    st.sampled_from(["[", '{"a":', '[{"content":', '{"content":[']),
    st.integers(1, 20_000),
)
def test_any_depth(path: str, member: str, opening: str, depth: int) -> None:
    closing = opening[::-1].translate(str.maketrans("[{", "]}", '":acontet'))
    deep = opening * depth + "1" + closing * depth
    read(path, f'{{"model":"m","{member}":{deep}}}'.encode())


@effort(200)
@given(st.binary(max_size=3000), st.sampled_from(["gzip", "deflate"]), st.integers(0, 4000))
def test_compressed_bodies_come_out_as_they_went_in(plain: bytes, coding: str, limit: int) -> None:
    coded = gzip.compress(plain) if coding == "gzip" else zlib.compress(plain)
    try:
        assert inflate(coded, coding.encode(), limit) == plain
        assert len(plain) <= limit
    except TooLarge:
        assert len(plain) > limit


@effort(500)
@given(st.binary(max_size=300), st.sampled_from(["gzip", "deflate"]), st.data())
def test_nearly_compressed_bodies(plain: bytes, coding: str, data: st.DataObject) -> None:
    coded = gzip.compress(plain * 50) if coding == "gzip" else zlib.compress(plain * 50)
    with contextlib.suppress(TooLarge, Malformed):
        assert len(inflate(data.draw(mutated(coded)), coding.encode(), 20_000)) <= 20_000
