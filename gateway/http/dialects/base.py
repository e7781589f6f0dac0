"""What a dialect is, and what those with JSON bodies have in common."""

from __future__ import annotations

import json
import re
from itertools import chain
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec
from msgspec import structs

from gateway.http.dialects.key import encode, utf8
from gateway.http.dialects.transfer import Transfers, transfer_in
from gateway.http.dialects.usage import Usage, usage_in
from gateway.http.errors import Malformed
from gateway.http.sse import CHAT, Grammar, StreamScanner
from gateway.http.stored import Stored
from gateway.types import Prompt

__all__ = ["BadRequest", "Body", "Dialect", "JsonDialect", "Usage", "count_or_none", "int_or_none"]


EVENT_STREAM = b"text/event-stream"
MAX_COUNT = 1 << 53
"""Beyond any that there is, and still a float: what clients send may have hundreds of digits."""


class BadRequest(Malformed):
    """The body cannot be read as what its route takes.

    Attributes:
        status: 400, or 415 for a content type that the route does not take.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str, status: int = 400
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.status = status


class Dialect(Protocol):
    """One API's way of asking for a prompt, reporting errors and streaming answers. Stateless."""

    @property
    def name(self) -> str:
        """A metric label; the set is closed."""

    @property
    def ends_with_marker(self) -> bool:
        """A stream that ends without its own end marker was cut."""

    @property
    def stream_type(self) -> bytes:
        """How the content type of its streams begins."""

    @property
    def has_priority(self) -> bool:
        """Engines take a `priority` in its bodies."""

    @property
    def stores(self) -> bool:
        """Its requests name responses that one backend keeps, or have one kept."""

    def parse(self, body: bytes, content_type: str) -> Prompt:
        """What routing needs of a request.

        Raises:
            BadRequest: no engine could make sense of it.
        """

    def error(
        self, status: int, message: str, *, type: str, code: str | None, param: str | None
    ) -> bytes:
        """JSON body of an error answer. `type`, `code` and `param` are OpenAI's."""

    def error_event(
        self,
        status: int,
        message: str,
        *,
        type: str,
        code: str | None = None,
        param: str | None = None,
    ) -> bytes:
        """The event that ends a stream which breaks off; to be sent between two events."""

    def scanner(self, stored: Stored | None = None) -> StreamScanner:
        """A reader for one event stream.

        Args:
            stored: told the id under which the backend keeps the answer, where it keeps any.
        """

    def usage(self, body: bytes) -> Usage | None:
        """The counts in a whole JSON answer."""


class Body(Transfers, gc=False, kw_only=True):
    """The members that every JSON route shares. Others are skipped without being built.

    Members are not typed: what is wrong with one that routing can do without is the engine's to
    judge, which may know more than we do.
    """

    model: Any = None
    stream: Any = None
    cache_salt: Any = None
    extra_key: Any = None
    lora_path: Any = None
    lora_request: Any = None
    lora: Any = None
    adapter_id: Any = None
    priority: Any = None

    def namespace(self, *, is_ids: bool = False) -> bytes:
        """Requests that differ in it never share cache: model, adapter, salt; text or token ids."""
        marks = (
            self.cache_salt,
            self.extra_key,
            self.lora_path,
            self.lora_request,
            self.lora,
            self.adapter_id,
        )
        model: bytes = utf8(self.model)
        if marks == _NO_MARKS and not is_ids:
            return model
        parts = [model]
        for name, value in zip(_MARKS, marks, strict=True):
            if value is not None and value != "":
                parts += (b"\xff", name, b"\xfe", encode(value))
        if is_ids:
            parts.append(b"\xffids")
        return b"".join(parts)

    def adapters(self) -> tuple[str, ...]:
        """What it asks for besides the model: a member of each engine's own."""
        asked = (self.lora_path, self.lora_request, self.lora, self.adapter_id)
        if asked == _NO_ADAPTERS:
            return ()
        lists = [value if isinstance(value, list) else [value] for value in asked]
        names = [each for each in chain(*lists) if each is not None and each != ""]
        return tuple(each if isinstance(each, str) else "" for each in names)


_INTEGER = re.compile(r"\s*([+-]?\d{1,18})(\.0*)?\s*", re.ASCII)
_MARKS = (b"cache_salt", b"extra_key", b"lora_path", b"lora_request", b"lora", b"adapter_id")
_NO_MARKS = (None,) * len(_MARKS)
_NO_ADAPTERS = (None,) * 4

B = TypeVar("B", bound=Body)


class JsonDialect(Generic[B]):
    """A dialect whose requests are JSON objects that name a model; on engines' own routes they need
    not, and then any backend will do."""

    name: ClassVar[str]
    body_type: ClassVar[type[Body]]
    grammar: ClassVar[Grammar] = CHAT
    ends_with_marker: ClassVar[bool] = True
    has_priority: ClassVar[bool] = False
    stores: ClassVar[bool] = False
    stream_type: ClassVar[bytes] = EVENT_STREAM
    needs_model: ClassVar[bool] = True

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(self.body_type).decode

    def parse(self, body: bytes, content_type: str) -> Prompt:
        if content_type != "application/json":
            _check_content_type(content_type)
        try:
            try:
                request: Any = self._decode(body)
            except ValueError as error:
                request = _decode_leniently(body, self.body_type, str(error))
            model = request.model
            if not model and not self.needs_model:
                request.model = ""
            elif type(model) is not str or not model or not model.isprintable():
                _refuse_model(model)
            prompt = self.read(request)
        except RecursionError:
            raise BadRequest("The body is nested too deeply.", code="invalid_json") from None
        transfer, priority = transfer_in(request), int_or_none(request.priority)
        adapters = request.adapters()
        if transfer or priority is not None or adapters:
            prompt = structs.replace(
                prompt, transfer=transfer, priority=priority, adapters=adapters
            )
        return prompt

    def read(self, request: B) -> Prompt:
        """The prompt of a request whose model is known to be a string."""
        raise NotImplementedError

    def scanner(self, stored: Stored | None = None) -> StreamScanner:
        return StreamScanner(self.grammar)

    def usage(self, body: bytes) -> Usage | None:
        return usage_in(body)


def count_or_none(value: Any) -> int | None:
    """`value` if it is a count, `MAX_COUNT` at most; None if it is anything else."""
    return min(value, MAX_COUNT) if type(value) is int and value >= 0 else None


def int_or_none(value: Any) -> int | None:
    """The whole number that `value` is, or that engines take it for; None if it is none."""
    if type(value) is int:
        return value
    if type(value) is float and value.is_integer():
        return int(value)
    match = _INTEGER.fullmatch(value) if type(value) is str else None
    return None if match is None else int(match[1])


def _check_content_type(content_type: str) -> None:
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type and media_type != "application/json" and not media_type.endswith("+json"):
        raise BadRequest(
            f"Content-Type is {media_type[:100]!r}; this route takes application/json.",
            code="unsupported_media_type",
            status=415,
        )


def _decode_leniently(body: bytes, into: type[Body], problem: str) -> Body:
    """What engines accept and our decoder does not: NaN, unpaired surrogates, a byte order mark."""
    if not body.strip():
        raise BadRequest("The body is empty; a JSON object is expected.", code="empty_body")
    try:
        value = json.loads(body)
    except ValueError:
        raise BadRequest(f"The body is not valid JSON: {problem}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise BadRequest(
            f"The body is {_json_type(value)}; a JSON object is expected.", code="invalid_json"
        )
    members: dict[str, Any] = {
        name: value[name] for name in into.__struct_fields__ if name in value
    }
    return into(**members)


def _refuse_model(model: Any) -> None:
    if model is None:
        raise BadRequest(
            "'model' is missing; it must be a string that names a model.",
            param="model",
            code="missing_required_parameter",
        )
    if not isinstance(model, str):
        raise BadRequest(
            f"'model' is {_json_type(model)}; it must be a string that names a model.",
            param="model",
            code="invalid_type",
        )
    raise BadRequest(
        "'model' is an empty string or has unprintable characters; it must name a model.",
        param="model",
        code="invalid_value",
    )


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"
