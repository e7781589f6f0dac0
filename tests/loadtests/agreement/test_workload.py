from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gateway.config import ConfigError
from loadtests.agreement.workload import TEMPLATE_TOKENS, cut, prompt
from loadtests.replay import source
from loadtests.replay.trace import Trace
from loadtests.sim import tokens

BLOCK = 512
CHAT = source.find("gen:chat?rate=4&seconds=40&think=5")(1)


def rendered(trace: Trace) -> list[bytes]:
    """As an engine tokenizes what a client sends."""
    return [
        tokens.render_chat([{"role": "user", "content": prompt(request, place, BLOCK)}])
        for place, request in enumerate(trace.requests)
    ]


def keys(packed: bytes) -> list[int]:
    """Blocks of 16 tokens, as an engine's cache names them."""
    return tokens.chain(b"", packed, 16)


def shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_a_prompt_has_as_many_tokens_as_virtual_time_gives_it() -> None:
    trace = cut(CHAT, 40.0, 1.0, 100_000)
    lengths = [len(packed) // tokens.TOKEN_BYTES for packed in rendered(trace)]
    assert lengths == [request.input_tokens for request in trace.requests]
    assert trace.requests[0].input_tokens == CHAT.requests[0].input_tokens + TEMPLATE_TOKENS


def test_prompts_share_what_their_blocks_share_and_no_more() -> None:
    trace = cut(CHAT, 20.0, 1.0, 100_000)
    chains = [keys(packed) for packed in rendered(trace)]
    found = set()
    for one, other in product(range(len(chains)), repeat=2):
        if one < other:
            blocks = shared(list(trace.requests[one].blocks), list(trace.requests[other].blocks))
            assert shared(chains[one], chains[other]) // (BLOCK // 16) == blocks
            found.add(blocks)
    assert len(found) > 3


def test_a_slice_is_what_comes_within_its_seconds_at_its_load() -> None:
    plain, dense = cut(CHAT, 10.0, 1.0, 100_000), cut(CHAT, 10.0, 2.0, 100_000)
    assert len(plain.requests) == sum(request.arrival < 10 for request in CHAT.requests)
    assert len(dense.requests) == sum(request.arrival < 20 for request in CHAT.requests)
    assert dense.requests[3].arrival == CHAT.requests[3].arrival / 2


def test_what_no_engine_takes_is_left_out() -> None:
    trace = cut(CHAT, 40.0, 1.0, 5000)
    assert 0 < len(trace.requests) < len(CHAT.requests)
    assert all(r.input_tokens + r.output_tokens <= 5000 for r in trace.requests)


def test_both_ways_are_told_the_same_limit_of_the_output() -> None:
    trace = cut(CHAT, 40.0, 1.0, 100_000)
    assert all(request.max_tokens == request.output_tokens > 0 for request in trace.requests)


def test_what_cannot_be_sent_is_refused() -> None:
    with pytest.raises(ConfigError, match="its blocks grow"):
        cut(replace(CHAT, block_tokens=None), 40.0, 1.0, 100_000)
    with pytest.raises(ConfigError, match=r"no request comes in the first 0\.001 s"):
        cut(CHAT, 0.001, 1.0, 100_000)
