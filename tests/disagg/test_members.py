"""Members of an object in its text: those that are named change, and not a byte besides."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.disagg.members import Members, NotAnObject, elements

WS = st.text(" \n\t\r", max_size=2).map(str.encode)
NAMES = st.sampled_from(["a", "b", 'c"', "é", "\\", "model", ""])
PLAIN = st.sampled_from(["a", "b", "é", "model", "new"])
RAW = (
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    ).flatmap(
        lambda value: st.sampled_from(
            [
                json.dumps(value).encode(),
                json.dumps(value, indent=1).encode(),
                json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"),
            ]
        )
    )
) | st.sampled_from([b"NaN", b"-Infinity", b'"\\ud800"', b"1e999", b'[{"x":"]}"},NaN]', b"1.50"])


@st.composite
def texts(draw: st.DrawFn) -> list[tuple[bytes, str, bytes, bytes]]:
    """Members as (text up to the value, name, value, text after it)."""
    members = []
    for name in draw(st.lists(NAMES, max_size=6)):
        spelt = json.dumps(name, ensure_ascii=draw(st.booleans()))
        if name == "a" and draw(st.booleans()):
            spelt = '"\\u0061"'
        before = draw(WS) + spelt.encode() + draw(WS) + b":" + draw(WS)
        members.append((before, name, draw(RAW), draw(WS)))
    return members


def joined(members: list[tuple[bytes, str, bytes, bytes]], empty: bytes = b"") -> bytes:
    inner = b",".join(before + value + after for before, _, value, after in members)
    return b" {" + (inner if members else empty) + b"}\n"


def pairs(text: bytes) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list)
    return found


@given(members=texts(), empty=WS)
def test_nothing_changes_when_nothing_is_asked(
    members: list[tuple[bytes, str, bytes, bytes]], empty: bytes
) -> None:
    text = joined(members, empty)
    assert Members(text).edited({}, {"other"}) == text


@given(members=texts(), values=st.dictionaries(PLAIN, RAW, max_size=4))
def test_values_change_and_no_byte_besides(
    members: list[tuple[bytes, str, bytes, bytes]], values: dict[str, bytes]
) -> None:
    after = [(before, name, values.get(name, value), end) for before, name, value, end in members]
    there = {name for _, name, _, _ in members}
    added = [
        b'"%b":%b' % (name.encode(), value) for name, value in values.items() if name not in there
    ]
    if after and added:
        before, name, value, end = after[-1]
        after[-1] = (before, name, value + b"," + b",".join(added), end)
        expected = joined(after)
    else:
        expected = joined(after, b",".join(added))
    assert Members(joined(members)).edited(values) == expected


@given(members=texts(), without=st.sets(NAMES, max_size=4), value=RAW)
def test_members_go_and_the_others_stay_as_they_are(
    members: list[tuple[bytes, str, bytes, bytes]], without: set[str], value: bytes
) -> None:
    edited = Members(joined(members)).edited({"new": value}, without)
    kept = [member for member in members if member[1] not in without]
    at = 0
    for before, _, old, _ in kept:
        at = edited.index(before.lstrip() + old, at) + 1
    # NaN is unequal to itself, so texts are compared
    expected = [*((name, json.loads(old)) for _, name, old, _ in kept), ("new", json.loads(value))]
    assert [name for name, _ in pairs(edited)] == [name for name, _ in expected]
    shown = [(name, json.dumps(item)) for name, item in pairs(edited)]
    assert shown == [(name, json.dumps(pairs_of(item))) for name, item in expected]


def pairs_of(value: Any) -> Any:
    """As `pairs` reads objects."""
    if isinstance(value, dict):
        return [[name, pairs_of(item)] for name, item in value.items()]
    return [pairs_of(item) for item in value] if isinstance(value, list) else value


@given(members=texts())
def test_of_several_the_last_is_the_value(members: list[tuple[bytes, str, bytes, bytes]]) -> None:
    found = Members(joined(members))
    for name, value in {name: value for _, name, value, _ in members}.items():
        assert name in found
        assert found.get(name) == value
    assert found.get("other") is None
    assert "other" not in found


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        (b'{"a":1,"a":1}', b'{"a":2,"a":2}'),
        (b'{"a":1,"a":12}', b'{"a":2,"a":2}'),
        (b'{"a":12,"a":1}', b'{"a":2,"a":2}'),
        (b'{"a":[1],"b":0,"\\u0061":1}', b'{"a":2,"b":0,"\\u0061":2}'),
        (b'{"a":[{"x":1 },0],"a":1234567}', b'{"a":2,"a":2}'),
        (b'{"b":NaN , "a":{"a":NaN}}', b'{"b":NaN , "a":2}'),
    ],
)
def test_names_that_come_twice(text: bytes, edited: bytes) -> None:
    assert Members(text).edited({"a": b"2"}) == edited
    assert "a" not in json.loads(Members(text).edited({}, {"a"}))


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b" ", b"[]", b"1", b'"{}"', b"null", b"{", b'{"a":1', b'{"a":1}}', b'{"a":NaN}}'),
        *(b"{a:1}", b'{"a" 1}', b'{"a":NaN,}', b'{"a":[NaN}', b'{"a":NaN "b":1}', b'{"a":}'),
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-le"),
        b'\xef\xbb\xbf{"a":1}',
    ],
)
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(NotAnObject):
        Members(text)


@pytest.mark.parametrize(
    "body",
    [
        b'{"m":[' + b'{"content":"' + b"word \\n " * 250_000 + b'"}]}',
        b'{"a":NaN,"m":[' + b'{"content":"' + b"\\\\" * 1_000_000 + b'"}]}',
        b'{"a":NaN,"m":' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}",
        b'{"a":NaN,"m":' + b'"' + b"x" * 2_000_000 + b'"}',
        b'{"a":NaN,' + b",".join(b'"m":1' for _ in range(300_000)) + b"}",
        b'{"a":NaN,"m":"' + b"x" * 2_000_000,
        b'{"a":NaN' + b" " * 2_000_000,
    ],
    ids=["quick", "escapes", "deep", "long", "many", "open string", "spaces"],
)
def test_the_time_grows_with_the_size_alone(body: bytes) -> None:
    start = time.perf_counter()
    try:
        edited = Members(body).edited({"a": b"1"})
    except NotAnObject:
        edited = body
    assert time.perf_counter() - start < 5.0
    assert len(edited) >= len(body) - 2


@pytest.mark.parametrize(
    ("text", "count"),
    [(b"[]", 0), (b'["a", "b,]"]', 2), (b"[[1],[2],[NaN]]", 3), (b"{}", 0), (b'"[1,2]"', 0)],
)
def test_elements_are_counted(text: bytes, count: int) -> None:
    assert elements(text) == count
