"""A trace: who asked for what and when, in the one form that all readers and generators give."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from gateway.config import ConfigError
from gateway.prefix.blocks import KEY_BYTES_PER_TOKEN, BlockScale
from gateway.types import HASH_BYTES, Chain, Priority

GROWING_UNIT = 32
"""Tokens per unit of an engine's cache where blocks grow: the size of the smallest block."""


class BadTrace(ConfigError):
    """A trace cannot be read. The message names the source, the line and the field."""

    def __init__(self, name: str, line: int, problem: str) -> None:
        super().__init__(f"{name}, line {line}: {problem}")
        self.line = line


@dataclass(slots=True, frozen=True)
class TraceRequest:
    """
    Attributes:
        arrival: seconds after the trace's begin.
        input_tokens: of the prompt as the engine counts, at least 1.
        output_tokens: what was generated. Nobody but the engine is told.
        blocks: per whole block of the prompt, a number that stands for everything up to its end.
        parent: place in the trace of the turn before this one, None for the first.
        think: seconds from the end of the parent's answer to this request.
        session: the client's own key of its session, where it sends one.
        max_tokens: the client's own limit of the output.
        key_tokens: of the prompt in nominal tokens, as the gateway counts; None when that is
            `input_tokens`.
    """

    arrival: float
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    parent: int | None = None
    think: float = 0.0
    tenant: str = ""
    session: str | None = None
    priority: Priority = Priority.NORMAL
    max_tokens: int | None = None
    key_tokens: int | None = None

    @property
    def chain(self) -> Chain:
        return self.chain_of(1)

    def chain_of(self, every: int) -> Chain:
        """The chain in which only every so-manieth block ends one."""
        blocks = self.blocks[every - 1 :: every]
        return struct.pack(f"<{len(blocks)}Q", *blocks)

    @property
    def nominal_tokens(self) -> int:
        return self.input_tokens if self.key_tokens is None else self.key_tokens


@dataclass(slots=True, frozen=True)
class Trace:
    """
    Attributes:
        requests: in order of arrival.
        digest: SHA-256 of what it was read from; of a generator, of its name with all parameters.
        block_tokens: prompt tokens per block; None when blocks grow as the gateway's own do.
        window: seconds of the batches in which the source lists arrivals; 0 when it has none.
        token_ratio: tokens as the engine counts per nominal token.
        notes: what a reader of results ought to know about it.
    """

    name: str
    requests: Sequence[TraceRequest]
    digest: str
    block_tokens: int | None
    window: float = 0.0
    token_ratio: float = 1.0
    notes: tuple[str, ...] = ()

    @property
    def span(self) -> float:
        """Seconds from the begin to the last arrival."""
        return self.requests[-1].arrival if self.requests else 0.0

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.requests) / self.span if self.span else 0.0

    @property
    def scale(self) -> BlockScale:
        """Where the blocks end, for the gateway's index."""
        if self.block_tokens is None:
            return BlockScale()
        return BlockScale.uniform(self.block_tokens * KEY_BYTES_PER_TOKEN)

    def coarser(self, factor: int) -> BlockScale:
        """The scale with blocks that are so many times as large.

        Raises:
            ConfigError: blocks grow, so they have no size that could be.
        """
        if factor == 1:
            return self.scale
        if self.block_tokens is None:
            raise ConfigError(f"{self.name}: blocks grow; none are {factor} times as large")
        return BlockScale.uniform(self.block_tokens * factor * KEY_BYTES_PER_TOKEN)

    @property
    def unit_tokens(self) -> int:
        """Tokens per unit of the engines' caches."""
        return self.block_tokens or GROWING_UNIT

    def units(self, request: TraceRequest) -> Sequence[int]:
        """What stands for a prompt in an engine's cache: a number for each whole unit.

        An engine's blocks are all of one size. Where the gateway's grow, each is cut into units
        that stand or fall with it, so two prompts share a unit only where they share its block.
        """
        if self.block_tokens is not None:
            return request.blocks
        scale, ratio = self.scale, self.token_ratio
        units: list[int] = []
        for count, block in enumerate(request.blocks, 1):
            name = block.to_bytes(HASH_BYTES, "little")
            covered = int(scale.tokens(count) * ratio) // GROWING_UNIT
            units += [xxh3_64_intdigest(name, unit) for unit in range(len(units), covered)]
        return units[: request.input_tokens // GROWING_UNIT]
