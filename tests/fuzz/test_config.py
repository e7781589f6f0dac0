"""Any config file: settings, or an error that says where."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import ConfigError, Settings, load
from gateway.process import check
from tests.fuzz.effort import effort
from tests.fuzz.mutations import mutated
from tests.harness.gateway_process import ROOT

DEFAULTS: dict[str, Any] = msgspec.to_builtins(Settings())
DEFAULTS["backends"] = [{"url": "http://127.0.0.1:1"}]
values = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(10**20), 10**20),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from([0, 1, -1, 0.5, "x", "m", "", [], {}, "http://h:99999", 1e300]),
    ),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


def places(tree: Any, above: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [above] if above else []
    if isinstance(tree, (dict, list)):
        members = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for name, value in members:
            found += places(value, (*above, name))
    return found


PLACES = places(DEFAULTS)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "gateway.yaml"


def loads(file: Path) -> ConfigError | None:
    try:
        settings = load(file)
        assert isinstance(settings, Settings)
        # What is opened or written is not to be tried here.
        if not (settings.log.access or settings.log.decisions):
            check(settings)
    except ConfigError as error:
        return error
    return None


@effort(300)
@given(st.sampled_from(PLACES), values)
def test_one_value_that_is_anything(file: Path, place: tuple[str | int, ...], value: Any) -> None:
    tree = copy.deepcopy(DEFAULTS)
    at: Any = tree
    for name in place[:-1]:
        at = at[name]
    at[place[-1]] = value
    file.write_text(yaml.safe_dump(tree))
    error = loads(file)
    if error is not None:
        named = [str(name) for name in place if isinstance(name, str)]
        assert any(name in str(error) for name in named), (place, value, error)


@effort(100)
@given(st.sampled_from(PLACES), st.text(min_size=1, max_size=8))
def test_one_name_too_many(file: Path, place: tuple[str | int, ...], extra: str) -> None:
    tree = copy.deepcopy(DEFAULTS)
    at: Any = tree
    for name in place:
        at = at[name]
    if isinstance(at, dict) and extra not in at:
        at[extra] = 1
        file.write_text(yaml.safe_dump(tree))
        loads(file)


@effort(150)
@given(st.data())
def test_a_file_that_is_nearly_right(file: Path, data: st.DataObject) -> None:
    text = (ROOT / "conf" / "prefixgate.yaml").read_bytes()
    start = data.draw(st.integers(0, len(text) - 300))
    part = data.draw(mutated(text[start : start + 300]))
    file.write_bytes(text[:start] + part + text[start + 300 :])
    loads(file)


@effort(100)
@given(st.binary(max_size=100) | values.map(lambda value: yaml.safe_dump(value).encode()))
def test_any_file(file: Path, text: bytes) -> None:
    file.write_bytes(text)
    loads(file)
