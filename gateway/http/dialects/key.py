"""The prompt key: what decides a request's KV cache, in the order in which templates render it.

    rendering options, tools, system, then each message: role, name, reasoning, content, tool calls

Each piece follows a marker byte. The markers never occur in UTF-8, so no text can imitate one and
different pieces give different keys. Nothing is counted up front and nothing follows the last
message, so the key of a conversation begins with the key of each earlier turn. Options that change
only the end of the rendering (`add_generation_prompt`, `continue_final_message`) are left out for
the same reason: what comes before the end is shared all the same.

Every function takes whatever JSON the client sent and never fails on its shape; an engine judges
that. Only nesting too deep to encode raises RecursionError.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Any

import msgspec
from xxhash import xxh3_128_hexdigest

MEDIA_BYTES = 4 * 576
"""Nominal size of a picture, a recording or a file: 576 tokens of 4 bytes, whatever its data."""

MESSAGE = b"\xff"
TEXT = b"\xfe"
REASONING = b"\xfd"
CALL = b"\xfc"
RESULT = b"\xfb"
MEDIA = b"\xfa"
JSON = b"\xf9"
OPTION = b"\xf8"
TOOL = b"\xf7"
NAME = b"\xf6"

_TEXT_ROLES = {
    role: MESSAGE + role.encode() + TEXT
    for role in ("system", "developer", "user", "assistant", "tool")
}
_TEXT_PARTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
_MEDIA_PARTS = frozenset(
    {
        "image_url",
        "input_image",
        "image",
        "image_embeds",
        "input_audio",
        "audio_url",
        "audio_embeds",
        "video_url",
        "file",
        "input_file",
        "document",
    }
)
_MEDIA_DATA = ("url", "data", "image_url", "file_data", "file_url", "file_id", "uuid")
_DIGEST_BYTES = 32


def utf8(text: str) -> bytes:
    """Like the codec, but an unpaired surrogate (legal in JSON) does not raise."""
    return text.encode("utf-8", "surrogatepass")


def encode(value: Any) -> bytes:
    """`value` as JSON, members in the order in which they came."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # an unpaired surrogate, which the standard library escapes
        return json.dumps(value).encode()


def messages_key(
    messages: Any,
    *,
    system: Any = None,
    tools: Any = None,
    options: Iterable[tuple[str, Any]] = (),
) -> bytes:
    """The key of a conversation.

    Args:
        messages: chat messages, Anthropic messages, Responses items, or one user text.
        system: what the API takes apart from the messages; a string or content parts.
        tools: tool definitions in any API's form.
        options: other members that may change the beginning of what is rendered.
    """
    parts: list[bytes] = []
    for name, value in options:
        if value is not None:
            parts += (OPTION, name.encode(), JSON, encode(value))
    if type(tools) is list:
        for tool in tools:
            parts += (TOOL, encode(tool))
    elif tools is not None:
        parts += (TOOL, encode(tools))
    if system is not None:
        parts += (MESSAGE, b"system")
        _add_content(parts, system)
    if type(messages) is list:
        roles = _TEXT_ROLES
        for message in messages:
            if type(message) is dict and len(message) == 2:
                content = message.get("content")
                role = message.get("role")
                if type(content) is str and type(role) is str:
                    opening = roles.get(role)
                    if opening is not None:
                        parts += (opening, content.encode("utf-8", "surrogatepass"))
                        continue
            _add_message(parts, message)
    elif type(messages) is str:
        parts += (_TEXT_ROLES["user"], utf8(messages))
    return b"".join(parts)


def _add_message(parts: list[bytes], message: Any) -> None:
    if type(message) is not dict:
        parts += (MESSAGE, JSON, encode(message))
        return
    get = message.get
    role = get("role")
    if type(role) is not str:
        _add_item(parts, message)
        return
    parts += (MESSAGE, utf8(role))
    name = get("name")
    if type(name) is str:
        parts += (NAME, utf8(name))
    answered = get("tool_call_id")
    if type(answered) is str:
        parts += (RESULT, utf8(answered))
    for member in ("reasoning_content", "reasoning", "thinking"):
        reasoning = get(member)
        if reasoning is not None:
            parts += (REASONING, utf8(reasoning) if type(reasoning) is str else encode(reasoning))
    _add_content(parts, get("content"))
    refusal = get("refusal")
    if type(refusal) is str:
        parts += (TEXT, utf8(refusal))
    call = get("function_call")
    if call is not None:
        _add_call(parts, call)
    calls = get("tool_calls")
    if type(calls) is list:
        for call in calls:
            _add_call(parts, call.get("function", call) if type(call) is dict else call)


def _add_item(parts: list[bytes], item: dict[str, Any]) -> None:
    """A Responses item without a role."""
    kind = item.get("type")
    if kind == "function_call":
        parts.append(MESSAGE)
        _add_call(parts, item)
    elif kind == "function_call_output":
        parts += (MESSAGE, RESULT, _text(item.get("call_id")))
        _add_content(parts, item.get("output"))
    elif kind == "reasoning":
        parts += (MESSAGE, REASONING)
        _add_content(parts, item.get("summary"))
        _add_content(parts, item.get("content"))
        hidden = item.get("encrypted_content")
        if hidden is not None:
            parts += (JSON, encode(hidden))
    else:
        parts += (MESSAGE, JSON, encode(item))


def _add_call(parts: list[bytes], call: Any) -> None:
    if type(call) is dict and type(call.get("name")) is str:
        arguments = call.get("arguments")
        if arguments is None:
            arguments = call.get("input")
        parts += (CALL, utf8(call["name"]), TEXT, _text(arguments))
    else:
        parts += (CALL, JSON, encode(call))


def _add_content(parts: list[bytes], content: Any) -> None:
    if type(content) is str:
        parts += (TEXT, utf8(content))
    elif type(content) is list:
        for part in content:
            _add_part(parts, part)
    elif type(content) is dict:
        _add_part(parts, content)
    elif content is not None:
        parts += (JSON, encode(content))


def _add_part(parts: list[bytes], part: Any) -> None:
    if type(part) is str:
        parts += (TEXT, utf8(part))
        return
    if type(part) is not dict:
        parts += (JSON, encode(part))
        return
    kind = part.get("type")
    if type(kind) is not str:
        kind = "text" if "text" in part else ""
    text = part.get("text")
    if kind in _TEXT_PARTS and type(text) is str:
        parts += (TEXT, utf8(text))
    elif kind == "thinking":
        parts += (REASONING, _text(part.get("thinking")))
    elif kind == "tool_use":
        _add_call(parts, part)
    elif kind == "tool_result":
        parts += (RESULT, _text(part.get("tool_use_id")))
        _add_content(parts, part.get("content"))
    elif kind in _MEDIA_PARTS:
        _add_media(parts, part, kind)
    else:
        parts += (JSON, encode(_without_marks(part)))


def _add_media(parts: list[bytes], part: dict[str, Any], kind: str) -> None:
    """Its digest, repeated to the nominal size so that a match covers what a prompt counts."""
    data = part.get(kind)
    if data is None:
        data = part.get("source", part)
    if type(data) is dict:
        if data.get("type") == "text":  # a document given as plain text
            parts += (TEXT, _text(data.get("data")))
            return
        data = next((data[name] for name in _MEDIA_DATA if type(data.get(name)) is str), None)
    if type(data) is not str:
        data = None
    parts.append(media_key(_without_marks(part) if data is None else data))


def media_key(data: Any) -> bytes:
    """Key bytes of a picture, a recording or a file, of whatever size."""
    raw = utf8(data) if type(data) is str else encode(data)
    return MEDIA + xxh3_128_hexdigest(raw).encode() * (MEDIA_BYTES // _DIGEST_BYTES)


def _without_marks(part: dict[str, Any]) -> dict[str, Any]:
    """Without Anthropic's `cache_control`, which moves on from turn to turn and is not rendered."""
    if "cache_control" not in part:
        return part
    return {name: value for name, value in part.items() if name != "cache_control"}


def _text(value: Any) -> bytes:
    return utf8(value) if type(value) is str else encode(value)


def text_key(first: bytes, others: Iterable[bytes]) -> bytes:
    """The key of a text that others are compared with: rerank and score."""
    return b"".join((first, *(TEXT + other for other in others)))


def content_bytes(content: Any) -> bytes:
    """Key bytes of a text or of content parts that stand outside a message."""
    if type(content) is str:
        return utf8(content)
    if type(content) is dict and type(content.get("content")) is list:
        content = content["content"]
    parts: list[bytes] = []
    _add_content(parts, content)
    return b"".join(parts)


class PromptKey(msgspec.Struct, frozen=True):
    """Key of a `prompt` or `input` member.

    Attributes:
        key: of the first prompt of a batch; 4 bytes per token id, little-endian.
        size: key bytes of the whole batch.
        is_ids: it is made of token ids.
    """

    key: bytes = b""
    size: int = 0
    is_ids: bool = False


NO_KEY = PromptKey()


def prompt_key(prompt: Any) -> PromptKey:
    """Of a string, token ids, or a list of either; `NO_KEY` for anything else."""
    if type(prompt) is str:
        key = utf8(prompt)
        return PromptKey(key, len(key))
    if type(prompt) is not list or not prompt:
        return NO_KEY
    first = prompt[0]
    if type(first) is int:
        key = _pack(prompt)
        return PromptKey(key, len(key), True)
    if type(first) is str:
        if any(type(text) is not str for text in prompt):
            return NO_KEY
        key = utf8(first)
        return PromptKey(key, len(key) + sum(len(utf8(text)) for text in prompt[1:]))
    if type(first) is list:
        if any(type(ids) is not list for ids in prompt):
            return NO_KEY
        key = _pack(first)
        return PromptKey(key, 4 * sum(map(len, prompt)), True) if key else NO_KEY
    return NO_KEY


def _pack(ids: list[Any]) -> bytes:
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error:  # something that is no token id
        return b""
