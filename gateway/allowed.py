"""What a type allows at some place in it, in words, for error messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from msgspec import inspect

STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
"""One step of a path as msgspec writes it: a member, an element, or any value of a mapping."""


def allowed(into: Any, path: str) -> str:
    """The values of an enumeration or the keys of a section at a place; "" for anything else.

    Args:
        into: the type.
        path: of the place, as in msgspec's errors, without the leading `$`.
    """
    kinds = [inspect.type_info(into)]
    for name, _ in STEP.findall(path):
        kinds = [inner for kind in kinds for outer in _each(kind) for inner in _inner(outer, name)]
    for each in (each for kind in kinds for each in _each(kind)):
        match each:
            case inspect.EnumType():
                return "one of " + ", ".join(str(member.value) for member in each.cls)
            case inspect.LiteralType():
                return "one of " + ", ".join(map(str, each.values))
            case inspect.StructType():
                return "known are " + ", ".join(field.encode_name for field in each.fields)
    return ""


def _each(kind: inspect.Type) -> Iterator[inspect.Type]:
    match kind:
        case inspect.UnionType():
            for member in kind.types:
                yield from _each(member)
        case inspect.Metadata():
            yield from _each(kind.type)
        case _:
            yield kind


def _inner(kind: inspect.Type, name: str) -> Iterator[inspect.Type]:
    match kind:
        case inspect.StructType():
            yield from (field.type for field in kind.fields if field.encode_name == name)
        case inspect.DictType():
            yield kind.value_type
        case inspect.ListType() | inspect.VarTupleType():
            yield kind.item_type
