"""A tokenizer that needs no vocabulary: four bytes of UTF-8 are a token, and its id.

Tokens are kept packed, four bytes each. Texts are padded to whole tokens one by one, and answers
are words of exactly one token, so that an answer sent back in the next turn has the tokens with
which it was generated, as with a real chat template.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import xxhash

from loadtests.sim.cache import Key

TOKEN_BYTES = 4
MEDIA_TOKENS = 256
"""Tokens of an image, a sound or any other part that is not text."""

_VOCABULARY = (
    b"ant arm art ash bay bee box cab cap cat cow cup day dew dog ear elm eye fig fin fog fox "
    b"gem gum hat hay hen hum ice ink ivy jam jar jay key kit lap leg log map mud net nut oak "
    b"oar owl paw pea pen pie pig pot ram ray red rye sea sky son sun tea toe urn van wax yew "
)
_WORDS = [
    _VOCABULARY[start : start + TOKEN_BYTES] for start in range(0, len(_VOCABULARY), TOKEN_BYTES)
]


def encode(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return data + b"\0" * (-len(data) % TOKEN_BYTES)


def decode(tokens: bytes) -> str:
    return tokens.replace(b"\0", b"").decode("utf-8", "replace")


def pack(ids: Sequence[int]) -> bytes:
    """Raises: ValueError: an id is not a whole number from 0 to 2**32 - 1."""
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error:
        raise ValueError("token ids must be whole numbers from 0 to 4294967295") from None


def unpack(tokens: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(tokens) // TOKEN_BYTES}I", tokens))


def special(name: str) -> bytes:
    """A control token, which no text contains: 0xff is not in UTF-8."""
    return b"\xff" + xxhash.xxh32_digest(name.encode())[:3]


def render_chat(
    messages: Iterable[dict[str, Any]], tools: bytes = b"", *, open_answer: bool = True
) -> bytes:
    """Tokens of a conversation: tools, then messages with their roles, then the answer's begin.

    Args:
        messages: as in a chat completions body.
        tools: the JSON of the tools, b"" for none.
    """
    end = special("end")
    parts = [special("begin")]
    if tools:
        parts += (special("tools"), encode(tools.decode()), end)
    for message in messages:
        parts.append(special(str(message.get("role"))))
        content = message.get("content")
        if isinstance(content, str):
            parts.append(encode(content))
        elif isinstance(content, list):
            parts.extend(_part(part) for part in content)
        rest = {
            key: value
            for key, value in message.items()
            if key not in ("role", "content") and value is not None
        }
        if rest:
            parts.append(encode(msgspec.json.encode(rest).decode()))
        parts.append(end)
    if open_answer:
        parts.append(special("assistant"))
    return b"".join(parts)


def _part(part: Any) -> bytes:
    if isinstance(part, str):
        return encode(part)
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return encode(part["text"])
    return xxhash.xxh32_digest(msgspec.json.encode(part)) * MEDIA_TOKENS


def chain(namespace: bytes, tokens: bytes, block_size: int) -> list[Key]:
    """Per whole block of `block_size` tokens, the hash of everything up to its end.

    Args:
        namespace: what else decides the cache content: adapter, cache salt.
    """
    size = block_size * TOKEN_BYTES
    link = xxhash.xxh3_64_intdigest(namespace)
    digest = xxhash.xxh3_64_intdigest
    return [
        link := digest(tokens[start : start + size], link)
        for start in range(0, len(tokens) - size + 1, size)
    ]


def answer(seed: str, tokens: int) -> list[bytes]:
    """As many words of one token each; the same for the same seed."""
    return random.Random(seed).choices(_WORDS, k=tokens)
