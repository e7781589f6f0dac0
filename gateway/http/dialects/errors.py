"""How each API spells an error: as an answer, and as an event in a stream that has begun."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec.json import encode

_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class OpenAIErrors:
    """OpenAI's error object. Its SDKs raise on an event whose data has an `error`."""

    def error(
        self, status: int, message: str, *, type: str, code: str | None, param: str | None
    ) -> bytes:
        return encode(
            {"error": {"message": message, "type": type, "param": param, "code": code or status}}
        )

    def error_event(
        self,
        status: int,
        message: str,
        *,
        type: str,
        code: str | None = None,
        param: str | None = None,
    ) -> bytes:
        data = self.error(status, message, type=type, code=code, param=param)
        return b"data: %b\n\n" % data


class ResponsesErrors(OpenAIErrors):
    """Like OpenAI's, but events have names, and clients read the members of an error event both
    directly (the documented type) and under `error` (what the SDKs raise on)."""

    def error_event(
        self,
        status: int,
        message: str,
        *,
        type: str,
        code: str | None = None,
        param: str | None = None,
    ) -> bytes:
        shown = code or str(status)
        data = encode(
            {
                "type": "error",
                "sequence_number": 0,
                "code": shown,
                "message": message,
                "param": param,
                "error": {"message": message, "type": type, "param": param, "code": shown},
            }
        )
        return b"event: error\ndata: %b\n\n" % data


class AnthropicErrors:
    """Anthropic's error object: its types follow from the status, and it has no code or param."""

    def error(
        self, status: int, message: str, *, type: str, code: str | None, param: str | None
    ) -> bytes:
        default = "api_error" if status >= 500 else "invalid_request_error"
        return encode(
            {
                "type": "error",
                "error": {"type": _ANTHROPIC_TYPES.get(status, default), "message": message},
            }
        )

    def error_event(
        self,
        status: int,
        message: str,
        *,
        type: str,
        code: str | None = None,
        param: str | None = None,
    ) -> bytes:
        data = self.error(status, message, type=type, code=code, param=param)
        return b"event: error\ndata: %b\n\n" % data


class _ErrorBody(msgspec.Struct, gc=False):
    error: Any = None
    message: Any = None
    param: Any = None


_decode = msgspec.json.Decoder(_ErrorBody).decode


def error_message(body: bytes) -> str | None:
    """What an engine's error body says, whichever shape it has; None when it says nothing."""
    try:
        found = _decode(body)
    except (ValueError, RecursionError):
        return None
    error = found.error
    message = error.get("message") if isinstance(error, dict) else error or found.message
    return message if isinstance(message, str) and message else None


_NO_MODEL = re.compile(
    r"\bmodel\b.*\b(?:(?:does not|doesn't) exist|not found|not loaded|unknown)|"
    r"\b(?:unknown|no such) model\b|^model: ",
    re.IGNORECASE | re.DOTALL,
)


def lacks_model(body: bytes) -> bool:
    """Whether an engine's answer with status 404 says that there is no such model."""
    try:
        found = _decode(body)
    except (ValueError, RecursionError):
        return False
    error = found.error if isinstance(found.error, dict) else {}
    if error.get("code") == "model_not_found" or error.get("param") == "model":
        return True
    if found.param == "model":
        return True
    return _NO_MODEL.search(error_message(body) or "") is not None
