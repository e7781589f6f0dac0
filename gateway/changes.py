"""What differs between two trees of settings, and putting some of it into a third."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

import msgspec

from gateway.config import Section

WHOLE = frozenset({"backends", "policy", "server.tls", "backend_tls", "redis", "replication"})
"""Sections that change as one: their parts mean nothing by themselves, or hold from the start."""


def changes(before: Section, after: Section, above: str = "") -> list[str]:
    """Dotted names of the options that differ."""
    names: list[str] = []
    for name in before.__struct_fields__:
        old, new = getattr(before, name), getattr(after, name)
        option = f"{above}{name}"
        if old == new:
            continue
        if isinstance(old, Section) and type(old) is type(new) and option not in WHOLE:
            names += changes(old, new, f"{option}.")
        else:
            names.append(option)
    return names


S = TypeVar("S", bound=Section)


def taken_over(now: S, other: S, options: Collection[str], above: str = "") -> S:
    """`now`, with some options as in `other`.

    Raises:
        ValueError: they do not go together with those that stay.
    """
    given: dict[str, Any] = {}
    for name in now.__struct_fields__:
        option = f"{above}{name}"
        if option in options:
            given[name] = getattr(other, name)
        elif any(each.startswith(f"{option}.") for each in options):
            inner = getattr(now, name), getattr(other, name)
            given[name] = taken_over(*inner, options, f"{option}.")
    return msgspec.structs.replace(now, **given)
