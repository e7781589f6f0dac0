"""From the gateway's matched tokens to the engine's cached tokens, term by term.

The gateway knows a turn by the bytes of its key, the engine by its tokens. Between the two lie four
differences, which add up to the whole of it:

- `our_blocks`: the gateway matches whole blocks of its own, and drops the rest.
- `ratio`: it counts four key bytes as a token; the model's tokenizer has a ratio of its own, and
  its chat template adds tokens.
- `answer`: the engine has the KV cache of the answer too, as far as the answer's text, sent back as
  history, gives the tokens that were generated. The gateway learns prompts only.
- `engine_blocks`: the engine as well reuses whole blocks only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from gateway.prefix.blocks import KEY_BYTES_PER_TOKEN
from loadtests.real_engines.exchange import Exchange


@dataclass(slots=True, frozen=True)
class Comparison:
    """In tokens. `matched` and the four differences add up to `cached`."""

    matched: float
    our_blocks: float
    ratio: float
    answer: float
    engine_blocks: float
    cached: float


ZERO = Comparison(0, 0, 0, 0, 0, 0)


def compare(before: Exchange, after: Exchange) -> Comparison:
    """Args:
    before: the turn that preceded `after` in its conversation, at the same backend.
    """
    known = before.key_bytes / KEY_BYTES_PER_TOKEN
    again = _common(before.prompt, after.prompt)
    reusable = _reusable(before, after)
    return Comparison(
        matched=after.matched,
        our_blocks=known - after.matched,
        ratio=again - known,
        answer=reusable - again,
        engine_blocks=after.cached - reusable,
        cached=after.cached,
    )


def predicted(before: Exchange, after: Exchange, block_size: int) -> int:
    """Tokens of `after` that the engine must find cached, by its rules: whole blocks, of tokens
    whose KV cache was computed, and never the whole prompt."""
    return min(_reusable(before, after), len(after.prompt) - 1) // block_size * block_size


def add(comparisons: Iterable[Comparison]) -> Comparison:
    total = ZERO
    for one in comparisons:
        total = Comparison(
            total.matched + one.matched,
            total.our_blocks + one.our_blocks,
            total.ratio + one.ratio,
            total.answer + one.answer,
            total.engine_blocks + one.engine_blocks,
            total.cached + one.cached,
        )
    return total


def _reusable(before: Exchange, after: Exchange) -> int:
    computed = (*before.prompt, *before.answer[:-1])  # the last token was never an input
    return _common(computed, after.prompt)


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
