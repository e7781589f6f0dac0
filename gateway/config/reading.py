"""Settings from YAML and from plain data, with errors that say where, what and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args

import msgspec

from gateway import document
from gateway.allowed import STEP, allowed
from gateway.config.base import ConfigError, Section
from gateway.config.settings import Settings

T = TypeVar("T")
_WHERE = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`")


def convert(
    data: Any, into: type[T], what: str, line: Callable[[str], int | None] | None = None
) -> T:
    """`data` as `into`, strictly.

    Args:
        what: names the source in error messages ("config.yaml", "body").
        line: of a place in the source, where it has lines.

    Raises:
        ConfigError: with the place, the value found there and what is allowed.
    """
    try:
        return msgspec.convert(data, into)
    except msgspec.ValidationError as error:
        message = str(_with_keys(error, data, into))
        where = _WHERE.search(message)
        place = where["path"] if where else ""
        problem = message[: where.start()] if where else message
        path = place.lstrip(".")
        value = _value_at(data, place)
        shown = f" (got {value!r})" if _showable(path, value) else ""
        unknown = _UNKNOWN.search(problem)
        if unknown or "enum value" in problem:
            problem += f"; {allowed(into, place)}"
        field = f"{path}.{unknown['name']}".lstrip(".") if unknown else path
        where_text = f"{path}: " if path else "top level: " if where else ""
        number = None if line is None else line(field)
        what = what if number is None else f"{what}:{number}"
        raise ConfigError(f"{what}: {where_text}{problem}{shown}", field=field or None) from None


def _with_keys(error: msgspec.ValidationError, data: Any, into: Any) -> Exception:
    """The same error with the keys of mappings, for which msgspec writes `[...]`.

    The key is found by leaving out all others: what is wrong with it stays wrong.
    """
    message = str(error)
    where = _WHERE.search(message)
    before, dots, _ = where["path"].partition("[...]") if where else ("", "", "")
    mapping = _value_at(data, before)
    if not dots or not isinstance(mapping, dict):
        return error
    for key, value in mapping.items():
        try:
            msgspec.convert(_replaced(data, before, {key: value}), into)
        except msgspec.ValidationError as alone:
            text = str(alone).replace(f"`${before}[...]", f"`${before}.{key}", 1)
            if text != str(alone):
                return ValueError(text)
    return error


def _replaced(data: Any, path: str, value: Any) -> Any:
    """A copy with another value at a place."""
    step = STEP.match(path)
    if step is None:
        return value
    name, index = step.groups()
    copy = data.copy()
    key = int(index) if index else name
    copy[key] = _replaced(data[key], path[step.end() :], value)
    return copy


S = TypeVar("S", bound=Section)


def changed(section: S, changes: dict[str, Any]) -> S:
    """A section with some of its settings changed: sections within it are changed likewise, all
    else is replaced.

    Raises:
        ConfigError: a change is not allowed.
    """
    return convert(_merged(section, changes), type(section), "body")


def _merged(section: Section, changes: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = msgspec.to_builtins(section)
    for name, value in changes.items():
        present = getattr(section, name, None)
        if isinstance(present, Section) and isinstance(value, dict):
            value = _merged(present, value)
        tree[name] = value
    return tree


def _value_at(data: Any, path: str) -> Any:
    for name, index in STEP.findall(path):
        try:
            data = data[int(index)] if index else data[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    return data


def _showable(path: str, value: Any) -> bool:
    """Containers say nothing in a message, and secrets must not be in one."""
    secret = re.search(r"(token|key|hash|password|secret|authorization)(\.env|\.file)?$", path)
    return isinstance(value, (str, int, float, bool)) and secret is None


def load(path: Path) -> Settings:
    """Settings from a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or says something that is not allowed.
    """
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(text, Settings, str(path))


def parse(text: bytes, into: type[T], what: str) -> T:
    """YAML text as `into`, strictly.

    Args:
        what: names the source in error messages.

    Raises:
        ConfigError: not YAML, or something in it is not allowed.
    """
    try:
        read = document.read(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what}: not valid YAML: {error}") from None
    except document.Unreadable as error:
        place = f"{what}:{error.line}" if error.line else what
        raise ConfigError(f"{place}: {error}") from None
    return convert(_without_nulls(read.data, into) or {}, into, what, read.line)


def _without_nulls(data: Any, into: Any = None) -> Any:
    """A section whose members are all commented out is null in YAML; so is an unset option. What
    may be null stays.

    Args:
        into: the type that the data are for.
    """
    if isinstance(data, dict):
        is_section = isinstance(into, type) and issubclass(into, Section)
        types = {f.name: f.type for f in msgspec.structs.fields(into)} if is_section else {}
        return {
            key: _without_nulls(value, types.get(key))
            for key, value in data.items()
            if value is not None or NoneType in get_args(types.get(key))
        }
    if isinstance(data, list):
        member = next(iter(get_args(into)), None)
        return [_without_nulls(value, member) for value in data]
    return data
