"""Every other path: forwarded as it is. Only the model is looked for, so that load is counted.

Nothing is refused here. A body without a model that can be found gives the model "".
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from gateway.http.dialects.base import int_or_none
from gateway.http.dialects.errors import AnthropicErrors, OpenAIErrors
from gateway.http.dialects.transfer import Transfers, transfer_in
from gateway.http.dialects.usage import Usage, usage_in
from gateway.http.sse import UNKNOWN, StreamScanner
from gateway.types import Prompt

FORM_WINDOW = 64 * 1024
"""Bytes at either end of a multipart form that are searched for its small fields."""
MAX_FIELD = 1024

_UNICODE_BEGINS = (b"\xef", b"\xfe", b"\xff", b"\0")
"""First bytes of JSON that begins with a byte order mark, or is in UTF-16 or UTF-32."""
_BOUNDARY = re.compile(r'boundary="?([^";,\s]{1,70})"?', re.IGNORECASE)
_FIELD = re.compile(
    rb'^content-disposition:\s*form-data\b[^\r\n]*;\s*name="?(model|stream)"?\s*(?:;|\r|$)',
    re.IGNORECASE | re.MULTILINE,
)


class _Body(Transfers, gc=False, kw_only=True):
    model: Any = None
    stream: Any = None
    priority: Any = None


_decode = msgspec.json.Decoder(_Body).decode


class PassThrough(OpenAIErrors):
    """A request is taken to generate tokens when it asks for a stream: token counts, tokenizers and
    look-ups never do."""

    name: ClassVar[str] = "passthrough"
    ends_with_marker: ClassVar[bool] = False
    has_priority: ClassVar[bool] = False

    def parse(self, body: bytes, content_type: str) -> Prompt:
        # Some routes read JSON whatever the type says.
        is_form = content_type[:20].lower().startswith("multipart/form-data")
        if is_form and body.startswith(b"--"):
            fields = dict(_form_fields(body, content_type))
            named: Any = fields.get(b"model", b"").decode("utf-8", "replace")
            stream = fields.get(b"stream", b"").strip().lower() in (b"true", b"1")
            transfer, priority = "", None
        else:
            found = _read_json(body)
            named = found.model
            stream = found.stream is True
            transfer, priority = transfer_in(found), int_or_none(found.priority)
        model = named if isinstance(named, str) and named.isprintable() else ""
        return Prompt(
            model,
            model.encode(),
            stream=stream,
            generates=stream,
            priority=priority,
            transfer=transfer,
        )

    def scanner(self) -> StreamScanner:
        return StreamScanner(UNKNOWN)

    def usage(self, body: bytes) -> Usage | None:
        return usage_in(body)


class AnthropicPassThrough(AnthropicErrors, PassThrough):
    """What lies under /v1/messages, such as /v1/messages/count_tokens."""

    name = "anthropic-passthrough"


def _read_json(body: bytes) -> _Body:
    if not body.lstrip().startswith(b"{"):
        if body[:1] not in _UNICODE_BEGINS and body[1:2] != b"\0":
            return _Body()
    else:
        with contextlib.suppress(ValueError, RecursionError):
            return _decode(body)
    # What engines accept and our decoder does not: NaN, a byte order mark, UTF-16.
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return _Body()
    if not isinstance(value, dict):
        return _Body()
    return _Body(**{name: value[name] for name in _Body.__struct_fields__ if name in value})


def _form_fields(body: bytes, content_type: str) -> Iterator[tuple[bytes, bytes]]:
    """The `model` and `stream` fields of a form, wherever they stand around its files.

    Files are big and lie between: only a window at either end is searched, and nothing is copied
    but a field's headers and value.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        return
    delimiter = b"--" + found[1].encode("latin-1", "replace")
    size = len(body)
    windows = [(0, size)]
    if size > 2 * FORM_WINDOW:
        windows = [(0, FORM_WINDOW), (size - FORM_WINDOW, size)]
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
                yield field[1].lower(), body[value : at - 2]
