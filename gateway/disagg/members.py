"""A JSON object's members, where they are in its text, and the text with some of them changed."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import msgspec

_WS = rb"[ \t\n\r]*+"
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_OPENING = re.compile(_WS + rb"\{" + _WS)
_NAME = re.compile(rb"(" + _STRING + rb")" + _WS + rb":" + _WS, re.DOTALL)
_AFTER = re.compile(_WS + rb"([,}])" + _WS)
_VALUE = re.compile(_STRING + rb"|[^\s\"{}\[\],:]+", re.DOTALL)
_NESTING = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


class NotAnObject(ValueError):
    """Not the text of a JSON object in UTF-8."""


class _Elsewhere(Exception):
    """A value is not where it would be if no name came twice."""


class _Member(NamedTuple):
    """Attributes:
    start: of its name, with the quotation mark.
    value: where its value starts.
    end: of its value.
    """

    name: str
    start: int
    value: int
    end: int


class Members:
    """The members of a JSON object, in their order; where a name comes several times, all of them.
    Engines take the last of these.

    Args:
        text: in UTF-8, and sound: a parser has taken it before.

    Raises:
        NotAnObject: it is none, as far as was looked.
    """

    __slots__ = ("_last", "_members", "_text")

    def __init__(self, text: bytes) -> None:
        self._text = text
        try:
            # Values are skipped in C: 0.2 ms for a megabyte, not 10. It stops at NaN and the like,
            # which engines take.
            self._members = list(_located(text, _decode(text)))
        except (ValueError, RecursionError, _Elsewhere):
            self._members = list(_scanned(text))
        self._last = {member.name: member for member in self._members}

    def __contains__(self, name: str) -> bool:
        return name in self._last

    def get(self, name: str) -> bytes | None:
        """The text of a member's value; None when there is no such member."""
        member = self._last.get(name)
        return None if member is None else self._text[member.value : member.end]

    def edited(self, values: Mapping[str, bytes], without: Collection[str] = ()) -> bytes:
        """The object's text with other values for some members and without others; what is not
        there yet is put at the end. The rest is as it was, to the byte.

        Args:
            values: JSON by name.
            without: names; those that are not there are of no matter.
        """
        text, members = self._text, self._members
        missing = dict(values)
        head = _opened(text)
        parts = [text[:head]]
        gap = b""
        for at, member in enumerate(members):
            if member.name in without:
                continue
            parts.append(gap)
            value = values.get(member.name)
            if value is None:
                parts.append(text[member.start : member.end])
            else:
                parts += (text[member.start : member.value], value)
                missing.pop(member.name, None)
            following = members[at + 1].start if at + 1 < len(members) else 0
            gap = text[member.end : following] if following else b","
        for name, value in missing.items():
            parts += (b"," if len(parts) > 1 else b"", b'"%b":%b' % (name.encode(), value))
        parts.append(text[members[-1].end if members else head :])
        return b"".join(parts)


def _opened(text: bytes) -> int:
    """Where an object's first name starts, or its end."""
    opening = _OPENING.match(text)
    if opening is None:
        raise NotAnObject
    return opening.end()


def _located(text: bytes, values: Mapping[str, msgspec.Raw]) -> Iterator[_Member]:
    """Raises:
    _Elsewhere: a name comes twice.
    """
    at = _opened(text)
    last = len(values) - 1
    for index, (name, value) in enumerate(values.items()):
        found = _NAME.match(text, at)
        if found is None or _spelt(found[1]) != name or not text.startswith(value, found.end()):
            raise _Elsewhere
        end = found.end() + len(memoryview(value))
        after = _AFTER.match(text, end)
        if after is None or (after[1] == b"}") is not (index == last):
            raise _Elsewhere
        yield _Member(name, found.start(), found.end(), end)
        at = after.end()


def _scanned(text: bytes) -> Iterator[_Member]:
    at = _opened(text)
    if text[at : at + 1] == b"}":
        return
    while True:
        found = _NAME.match(text, at)
        if found is None:
            raise NotAnObject
        end = _value_end(text, found.end())
        after = _AFTER.match(text, end)
        if after is None:
            raise NotAnObject
        yield _Member(_spelt(found[1]), found.start(), found.end(), end)
        at = after.end()
        if after[1] == b"}":
            if at != len(text):
                raise NotAnObject
            return


def _value_end(text: bytes, at: int) -> int:
    if text[at : at + 1] not in (b"{", b"["):
        value = _VALUE.match(text, at)
        if value is None:
            raise NotAnObject
        return value.end()
    depth = 0
    for found in _NESTING.finditer(text, at):
        mark = found[0]
        if mark in (b"{", b"["):
            depth += 1
        elif mark in (b"}", b"]"):
            depth -= 1
            if not depth:
                return found.end()
    raise NotAnObject


def _spelt(name: bytes) -> str:
    """Raises:
    ValueError: not a string in UTF-8.
    """
    if b"\\" not in name:
        return name[1:-1].decode()
    spelt: str = json.loads(name)
    return spelt


def elements(text: bytes) -> int:
    """How many members a JSON array has; 0 when the text is that of another value.

    Raises:
        ValueError: it cannot be read.
    """
    if not text.startswith(b"["):
        return 0
    try:
        return len(_decode_array(text))
    except ValueError:
        return len(json.loads(text))
