"""The ids under which engines keep their answers, found as the answers pass."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from gateway.http.sse import RESPONSES, StreamScanner

Stored = Callable[[str], None]
"""Told the id under which a backend keeps an answer."""


class _Response(msgspec.Struct, gc=False):
    id: Any = None


class _Event(msgspec.Struct, gc=False):
    response: _Response | None = None


_decode_event = msgspec.json.Decoder(_Event).decode
_decode = msgspec.json.Decoder(_Response).decode
_LEADING_ID = re.compile(rb'\s*\{\s*"id"\s*:\s*"([^"\\]*)"')


class StoredScanner(StreamScanner):
    """Reads along a stream of /v1/responses, and tells the answer's id before any of it has gone to
    the client, which may refer to it at once."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Stored) -> None:
        super().__init__(RESPONSES)
        self._stored: Stored | None = stored

    def _on_event(self, data: bytes, name: bytes) -> None:
        if self._stored is not None and b'"response"' in data:
            self._read_id(self._stored, data)
        super()._on_event(data, name)

    def _read_id(self, stored: Stored, data: bytes) -> None:
        try:
            event = _decode_event(data)
        except (ValueError, RecursionError):
            return
        if event.response is not None and isinstance(event.response.id, str):
            stored(event.response.id)
            self._stored = None


def stored_id(body: bytes) -> str | None:
    """The id of an answer that is no stream, from as much of it as is there: engines put it first;
    where it comes later, all of the answer is needed."""
    leading = _LEADING_ID.match(body)
    if leading is not None:
        return leading[1].decode("utf-8", "replace")
    try:
        id = _decode(body).id
    except (ValueError, RecursionError):
        return None
    return id if isinstance(id, str) else None
