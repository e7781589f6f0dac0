from __future__ import annotations

from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from gateway.prefix.blocks import BlockScale
from loadtests.replay.trace import GROWING_UNIT, Trace, TraceRequest
from tests.loadtests.replay.made import request, trace


def growing(ratio: float = 1.0) -> Trace:
    return Trace("log", (), "digest", None, token_ratio=ratio)


def test_a_chain_packs_eight_bytes_a_block() -> None:
    chain = request(0, [1, 2**64 - 1]).chain
    assert chain == (1).to_bytes(8, "little") + b"\xff" * 8


def test_uniform_blocks_are_the_engines_units() -> None:
    made = trace(request(0, [7, 8]))
    assert made.unit_tokens == 512
    assert list(made.units(made.requests[0])) == [7, 8]
    assert made.scale.tokens(2) == 1024


@given(st.integers(0, 200), st.integers(1, 200))
def test_growing_blocks_are_cut_into_units_that_stand_for_as_many_tokens(
    shared: int, own: int
) -> None:
    made, scale = growing(), BlockScale()
    chains = [(*range(shared), *range(begin, begin + own)) for begin in (1000, 2000)]
    tokens = int(scale.tokens(shared + own))
    one, other = (made.units(TraceRequest(0, tokens, 1, chain)) for chain in chains)
    assert len(one) == tokens // GROWING_UNIT
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=True)))
    assert same == scale.tokens(shared) // GROWING_UNIT
    assert len(set(one)) == len(one)


def test_units_are_counted_in_the_engines_own_tokens() -> None:
    chain = tuple(range(16))  # 512 nominal tokens
    assert len(growing(2.0).units(TraceRequest(0, 1024, 1, chain))) == 32
    assert len(growing(0.5).units(TraceRequest(0, 256, 1, chain))) == 8
    # A prompt shorter than its blocks should be has no more units than tokens.
    assert len(growing(1.0).units(TraceRequest(0, 200, 1, chain))) == 6


def test_prompts_of_one_text_share_units_whatever_the_ratio() -> None:
    made = growing(1.37)
    long = made.units(TraceRequest(0, 5000, 1, tuple(range(60))))
    short = made.units(TraceRequest(0, 2000, 1, tuple(range(30))))
    assert list(long[: len(short)]) == list(short)
