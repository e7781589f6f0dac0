"""Writing another model name into a request's body, and nothing else."""

from __future__ import annotations

import json
import re
from itertools import islice
from typing import Any

import msgspec

from gateway.http.dialects.form import form_fields, is_form
from gateway.http.errors import Malformed

_MEMBER = re.compile(rb'"model"\s*:\s*("(?:[^"\\]|\\.){0,2048}")')
_LOOKED_AT = 1000
"""Members called `model`, at any depth, that are looked at."""
_TRIED = 8
"""Of those, how many with the right value are tried: each takes a pass over the body."""


class _Named(msgspec.Struct, gc=False):
    model: Any = None


_decode = msgspec.json.Decoder(_Named).decode


def renamed(body: bytes, content_type: str, name: str) -> bytes:
    """The body with `name` for its model.

    Raises:
        Malformed: the model is there in a way that it cannot be told where.
    """
    if is_form(content_type):
        fields = list(form_fields(body, content_type))
        values = [value for field, value in fields if field == b"model"]
        for value in reversed(values):
            body = b"%b%b%b" % (body[: value.start], name.encode(), body[value.stop :])
        if values:
            return body
    else:
        current = _model_in(body)
        if current == name:
            return body
        tries = 0
        for found in islice(_MEMBER.finditer(body), _LOOKED_AT):
            if json.loads(found[1]) != current:
                continue
            start, stop = found.span(1)
            changed = b"%b%b%b" % (body[:start], msgspec.json.encode(name), body[stop:])
            # One further down is another object's. Of several at the top the last one counts.
            if _model_in(changed) == name:
                return changed
            tries += 1
            if tries == _TRIED:
                break
    raise Malformed(
        "The model goes by another name where it is served, and the body's 'model' cannot be"
        " changed: it must be spelt without escapes, in UTF-8, once.",
        param="model",
        code="invalid_value",
    )


def _model_in(body: bytes) -> object:
    try:
        return _decode(body).model
    except ValueError:
        return json.loads(body).get("model")  # NaN and the like, which engines accept
