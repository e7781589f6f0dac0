"""Every other path: forwarded as it is. Only the model is looked for, so that load is counted.

Nothing is refused here but a form that says two things at once. A body without a model that can be
found gives the model "".
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, ClassVar

import msgspec

from gateway.http.dialects.base import EVENT_STREAM, int_or_none
from gateway.http.dialects.errors import AnthropicErrors, OpenAIErrors
from gateway.http.dialects.form import form_fields, is_form
from gateway.http.dialects.transfer import Transfers, transfer_in
from gateway.http.dialects.usage import Usage, usage_in
from gateway.http.errors import Malformed
from gateway.http.sse import UNKNOWN, StreamScanner
from gateway.http.stored import Stored
from gateway.types import Prompt

_UNICODE_BEGINS = (b"\xef", b"\xfe", b"\xff", b"\0")
"""First bytes of JSON that begins with a byte order mark, or is in UTF-16 or UTF-32."""


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
    stores: ClassVar[bool] = False
    stream_type: ClassVar[bytes] = EVENT_STREAM

    def parse(self, body: bytes, content_type: str) -> Prompt:
        # Some routes read JSON whatever the type says.
        if is_form(content_type) and body.startswith(b"--"):
            fields: dict[bytes, bytes] = {}
            for name, value in form_fields(body, content_type):
                if fields.setdefault(name, body[value]) != body[value]:
                    # Some engines go by the first one, some by the last.
                    raise Malformed(
                        f"The form names more than one {name.decode()}.",
                        code="invalid_form",
                        param=name.decode(),
                    )
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

    def scanner(self, stored: Stored | None = None) -> StreamScanner:
        return StreamScanner(UNKNOWN)

    def usage(self, body: bytes) -> Usage | None:
        return usage_in(body)


class ResponsesPassThrough(PassThrough):
    """What lies under /v1/responses: looking at a stored response, cancelling or deleting it."""

    stores = True


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
