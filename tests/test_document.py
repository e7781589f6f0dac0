from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import ConfigError, load
from gateway.document import MAX_NODES, Unreadable, read


def bomb(depth: int = 9) -> str:
    """A few hundred bytes that stand for more values than fit in memory."""
    lines = ["l0: &l0 [x, x]"]
    for number in range(1, depth):
        aliases = ", ".join([f"*l{number - 1}"] * 10)
        lines.append(f"l{number}: &l{number} [{aliases}]")
    return "\n".join(lines)


def test_places_have_lines() -> None:
    document = read("a:\n  b: 1\n\nlist:\n- x\n- k: {m: 2}\n")
    assert document.data == {"a": {"b": 1}, "list": ["x", {"k": {"m": 2}}]}
    assert [document.line(place) for place in ("a", "a.b", "list[1]", "list[1].k.m")] == [
        *(1, 2, 6, 6)
    ]
    assert document.line("list[1].k.none") == 6
    assert document.line("a.none.deeper") == 1
    assert document.line("none") is None
    assert document.line("") is None


def test_anchors_and_merge_keys() -> None:
    text = "base: &base {x: 1, y: 2}\na: *base\nb:\n  <<: *base\n  y: 3\n"
    assert read(text).data["b"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "a: is there twice, first on line 1"),
        ("a:\n  b: 1\n  'b': 2\n", 3, "a.b: is there twice, first on line 2"),
        ("- {x: 1, x: 1}\n", 1, r"\[0\].x: is there twice"),
        ("a: &x {b: {c: 1, c: 2}}\nd: *x\n", 1, "a.b.c: is there twice"),
        ("a: [b\nc: d\n", 2, "not valid YAML: "),
        ("a: 1\n\tb: 2\n", 2, "not valid YAML: "),
        ("a: *none\n", 1, "not valid YAML: found undefined alias"),
        ("a: !!python/name:os.system x\n", 1, "not valid YAML: could not determine a constructor"),
        ("a: 1\n---\na: 2\n", 2, "not valid YAML: but found another document"),
        ("? [a]\n: 1\n", 1, "not valid YAML: found unhashable key"),
        ("a: 2026-99-99\n", None, "not valid YAML: month must be"),
        ("a: \x00\n", None, "not valid YAML: unacceptable character"),
        ("a: &x [*x]\n", None, f"aliases stand for more than {MAX_NODES}"),
        (bomb(), None, f"aliases stand for more than {MAX_NODES}"),
        ("", None, "is empty"),
        (" \n\n", None, "is empty"),
    ],
)
def test_what_is_no_document(text: str, line: int | None, problem: str) -> None:
    with pytest.raises(Unreadable, match=problem) as caught:
        read(text)
    assert caught.value.line == line
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 5000, "[" * 5000 + "]" * 5000, "a: " + "{b: " * 5000])
def test_nesting_has_an_end(text: str) -> None:
    with pytest.raises(Unreadable, match=r"nested too deeply|nesting depth"):
        read(text)


def test_only_comments_are_a_document() -> None:
    assert read("# nothing yet\n").data is None


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*<>!|'\"# \n\t1.\\%@`?,"), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(Unreadable):
        read(text)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_settings_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(data)
    with suppress(ConfigError):
        load(path)


def test_a_wrong_setting_is_found_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("server:\n  port: 1\nbackends:\n- url: http://a\n- url: http://b\n  wight: 2\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:6: backends[1]: Object contains unknown field")
