"""Another model name in a body: that one value, and nothing else."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.errors import Malformed
from gateway.http.model_name import renamed

JSON = "application/json"

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "a", 'b"', "é"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    before=st.dictionaries(st.text(max_size=5), values, max_size=3),
    after=st.dictionaries(st.text(max_size=5), values, max_size=3),
    spaced=st.booleans(),
    ascii=st.booleans(),
)
def test_only_the_model_changes(
    before: dict[str, Any], after: dict[str, Any], spaced: bool, ascii: bool
) -> None:
    before.pop("model", None)
    after.pop("model", None)
    separators = (" , ", " : ") if spaced else (",", ":")

    def spelt(model: str) -> bytes:
        body = {**before, "model": model, **after}
        text = json.dumps(body, separators=separators, ensure_ascii=ascii)
        return text.encode("utf-8", "surrogatepass")

    assert renamed(spelt("small"), JSON, "m/1") == spelt("m/1")


def test_the_name_that_is_there_already() -> None:
    body = b'{"model" : "m"}'
    assert renamed(body, JSON, "m") is body


def test_names_are_quoted() -> None:
    assert renamed(b'{"model":"small"}', JSON, 'a"b\\é') == '{"model":"a\\"b\\\\é"}'.encode()


def test_of_several_the_last_one_counts() -> None:
    body = b'{"model":"small","model":"small"}'
    assert renamed(body, JSON, "m") == b'{"model":"small","model":"m"}'


@pytest.mark.parametrize(
    "body",
    [
        '{"model":"small"}'.encode("utf-16"),
        b'{"mod\\u0065l":"small"}',
        b'{"x":[' + b'{"model":"small"},' * 50 + b'{}],"model":"small"}',
        b'{"x":[' + b'{"model":"other"},' * 5000 + b'{}],"model":"small"}',
    ],
    ids=["utf-16", "escaped name", "many alike", "many"],
)
def test_what_cannot_be_found_is_refused(body: bytes) -> None:
    with pytest.raises(Malformed, match="model"):
        renamed(body, JSON, "m")


def test_hostile_bodies_take_no_longer_than_others() -> None:
    body = b'{"x":[' + b'{"model":"small"},' * 200_000 + b'{}],"model":"small"}'
    began = time.perf_counter()
    with pytest.raises(Malformed):
        renamed(body, JSON, "m")
    assert time.perf_counter() - began < 5.0


FORM = 'multipart/form-data; boundary="b"'


@pytest.mark.parametrize("size", [10, 1_000_000])
@pytest.mark.parametrize("first", [True, False])
def test_forms(size: int, first: bool) -> None:
    def form(model: bytes) -> bytes:
        field = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n%b\r\n' % model
        file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n'
        file += b"x" * size + b"\r\n"
        return (field + file if first else file + field) + b"--b--\r\n"

    assert renamed(form(b"small"), FORM, "m") == form(b"m")


def test_forms_without_a_model_that_can_be_found() -> None:
    with pytest.raises(Malformed):
        renamed(b"--b--\r\n", FORM, "m")
