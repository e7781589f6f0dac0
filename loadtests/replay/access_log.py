"""The gateway's own access log: yesterday's traffic.

A line's `chain` is what makes it worth a replay: base64 of the packed block hashes of its prompt,
8 bytes each, least byte first, cut where the gateway's own blocks end. The hashes tell which
prompts begin alike, and nothing else about them.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from gateway.config import ConfigError
from gateway.estimates.tokens import NOMINAL_BYTES
from gateway.prefix.blocks import BlockScale
from gateway.types import HASH_BYTES, Priority
from loadtests.replay.trace import BadTrace, TraceRequest

Count = Annotated[int, Meta(ge=0)]


class Line(msgspec.Struct, frozen=True):
    time: float
    """Seconds since 1970."""
    prompt_bytes: Count
    output_tokens: Count
    outcome: str | None = None
    reported_prompt_tokens: Count | None = None
    chain: str | None = None
    tenant: str | None = None
    session: str | None = None
    priority: Priority = Priority.NORMAL
    max_tokens: Count | None = None


@dataclass(slots=True, frozen=True)
class AccessLog:
    """
    Attributes:
        token_ratio: tokens as the engines reported them per nominal token.
        left_out: lines of requests that no engine served: what they would have brought in output
            is not known.
    """

    requests: list[TraceRequest]
    token_ratio: float
    left_out: int


def read(name: str, lines: Iterable[bytes]) -> AccessLog:
    """
    Raises:
        BadTrace: a line is not what it should be.
        ConfigError: the log has no chains.
    """
    decode = msgspec.json.Decoder(Line).decode
    scale = BlockScale()
    kept: list[tuple[Line, tuple[int, ...]]] = []
    left_out = 0
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadTrace(name, number, str(error)) from None
        if line.prompt_bytes and (line.outcome == "ok" or line.output_tokens):
            kept.append((line, _blocks(name, number, line.chain)))
        else:
            left_out += 1
    if kept and all(line.chain is None for line, _ in kept):
        raise ConfigError(
            f"{name}: no line has a `chain`, so nobody can tell which prompts begin alike;"
            " set log.chains to have the gateway write them"
        )
    kept.sort(key=lambda pair: pair[0].time)
    ratio = _token_ratio(kept, scale)
    begin = kept[0][0].time if kept else 0.0
    requests = []
    for line, blocks in kept:
        nominal = _nominal(line, blocks, scale)
        tokens = line.reported_prompt_tokens or round(nominal * ratio)
        requests.append(
            TraceRequest(
                arrival=line.time - begin,
                input_tokens=max(1, tokens),
                output_tokens=line.output_tokens,
                blocks=blocks,
                tenant=line.tenant or "",
                session=line.session,
                priority=line.priority,
                max_tokens=line.max_tokens,
                key_tokens=nominal,
            )
        )
    return AccessLog(requests, ratio, left_out)


def _nominal(line: Line, blocks: tuple[int, ...], scale: BlockScale) -> int:
    """Nominal tokens of a prompt: those of its bytes, but never less than its blocks."""
    return max(line.prompt_bytes // int(NOMINAL_BYTES), int(scale.tokens(len(blocks))))


def _token_ratio(kept: Iterable[tuple[Line, tuple[int, ...]]], scale: BlockScale) -> float:
    reported = nominal = 0
    for line, blocks in kept:
        if line.reported_prompt_tokens:
            reported += line.reported_prompt_tokens
            nominal += _nominal(line, blocks, scale)
    return reported / nominal if nominal else 1.0


def _blocks(name: str, number: int, chain: str | None) -> tuple[int, ...]:
    if chain is None:
        return ()
    try:
        packed = binascii.a2b_base64(chain, strict_mode=True)
        return struct.unpack(f"<{len(packed) // HASH_BYTES}Q", packed)
    except (binascii.Error, struct.error):
        raise BadTrace(
            name, number, "chain is not the base64 of whole 8-byte hashes - at `$.chain`"
        ) from None
