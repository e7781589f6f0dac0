"""Small fields of multipart forms, found without taking the form apart."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.http.errors import Malformed

MAX_PARTS = 1000
"""As many as engines' form parsers take, too."""
MAX_FIELD = 1024

_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})"?', re.IGNORECASE)
_FIELD = re.compile(
    rb'^content-disposition:\s*form-data\b[^\r\n]*;\s*name\s*=\s*"?(model|stream)"?\s*(?:;|\r|$)',
    re.IGNORECASE | re.MULTILINE,
)


def is_form(content_type: str) -> bool:
    return content_type[:20].lower().startswith("multipart/form-data")


def form_fields(body: bytes, content_type: str) -> Iterator[tuple[bytes, slice]]:
    """The `model` and `stream` fields of a form, and where in it their values are.

    Files are big and lie between: nothing is copied but a small field's headers.

    Raises:
        Malformed: the form has more than `MAX_PARTS` parts.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        return
    delimiter = b"\r\n--" + found[1].encode("latin-1", "replace")
    at = 0 if body.startswith(delimiter[2:]) else body.find(delimiter)
    parts = 0
    while at >= 0:
        head = at + len(delimiter)
        value = body.find(b"\r\n\r\n", head - 2) + 4
        if value < 4:
            break
        parts += 1
        if parts > MAX_PARTS:
            raise Malformed(f"The form has more than {MAX_PARTS} parts.", code="invalid_form")
        start, at = at, body.find(delimiter, value - 2)
        if at < 0 or at - value > MAX_FIELD:
            continue
        field = _FIELD.search(body[start:value])
        if field is not None:
            yield field[1].lower(), slice(value, at)
