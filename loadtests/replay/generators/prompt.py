"""Prompts that begin alike, in blocks of 512 tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

BLOCK_TOKENS = 512


@dataclass(slots=True, frozen=True)
class Prompt:
    """
    Attributes:
        blocks: per whole block, a number that stands for everything up to its end.
    """

    tokens: int = 0
    blocks: tuple[int, ...] = ()

    def then(self, tokens: int, fresh: Iterator[int]) -> Prompt:
        """This prompt, and so many tokens more that no other prompt has.

        Args:
            fresh: numbers that no block has yet.
        """
        total = self.tokens + tokens
        added = total // BLOCK_TOKENS - len(self.blocks)
        return Prompt(total, (*self.blocks, *islice(fresh, added)))
