"""Small fields of multipart forms, found without taking the form apart."""

from __future__ import annotations

import re
from collections.abc import Iterator

WINDOW = 64 * 1024
"""Bytes at either end of a form that are searched for its small fields."""
MAX_FIELD = 1024

_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})"?', re.IGNORECASE)
_FIELD = re.compile(
    rb'^content-disposition:\s*form-data\b[^\r\n]*;\s*name="?(model|stream)"?\s*(?:;|\r|$)',
    re.IGNORECASE | re.MULTILINE,
)


def is_form(content_type: str) -> bool:
    return content_type[:20].lower().startswith("multipart/form-data")


def form_fields(body: bytes, content_type: str) -> Iterator[tuple[bytes, slice]]:
    """The `model` and `stream` fields of a form, and where in it their values are.

    Files are big and lie between: only a window at either end is searched, and nothing is copied
    but a field's headers.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        return
    delimiter = b"--" + found[1].encode("latin-1", "replace")
    size = len(body)
    windows = [(0, size)]
    if size > 2 * WINDOW:
        windows = [(0, WINDOW), (size - WINDOW, size)]
    for start, end in windows:
        at = body.find(delimiter, start, end)
        while at >= 0:
            head = at + len(delimiter)
            value = body.find(b"\r\n\r\n", head, end) + 4
            if value < 4:
                break
            at = body.find(delimiter, value, end)
            if at < 0 or at - value > MAX_FIELD:
                continue
            field = _FIELD.search(body[head:value])
            if field is not None:
                yield field[1].lower(), slice(value, at - 2)
