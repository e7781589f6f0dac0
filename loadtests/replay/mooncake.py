"""Mooncake's traces: JSON lines with a hash for every 512 tokens of the prompt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from loadtests.replay.trace import BadTrace, TraceRequest

BLOCK_TOKENS = 512


class Line(msgspec.Struct, frozen=True):
    timestamp: Annotated[int, Meta(ge=0)]
    """Milliseconds."""
    input_length: Annotated[int, Meta(ge=1)]
    output_length: Annotated[int, Meta(ge=0)]
    hash_ids: list[Annotated[int, Meta(ge=0)]]
    """The last one may stand for less than a block."""


def read(name: str, lines: Iterable[bytes]) -> list[TraceRequest]:
    """
    Raises:
        BadTrace: a line is not what it should be.
    """
    decode = msgspec.json.Decoder(Line).decode
    requests = []
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadTrace(name, number, str(error)) from None
        whole, rest = divmod(line.input_length, BLOCK_TOKENS)
        if not whole <= len(line.hash_ids) <= whole + bool(rest):
            raise BadTrace(
                name,
                number,
                f"{len(line.hash_ids)} hashes for {line.input_length} tokens, expected one per"
                f" {BLOCK_TOKENS} - at `$.hash_ids`",
            )
        if max(line.hash_ids, default=0) >= 2**64:
            raise BadTrace(name, number, "expected hashes below 2**64 - at `$.hash_ids`")
        requests.append(
            TraceRequest(
                arrival=line.timestamp / 1000,
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                blocks=tuple(line.hash_ids[:whole]),
            )
        )
    return requests
