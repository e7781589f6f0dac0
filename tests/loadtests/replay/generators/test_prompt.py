from __future__ import annotations

from itertools import count

from loadtests.replay.generators.prompt import BLOCK_TOKENS, Prompt


def test_prompts_share_the_whole_blocks_of_what_they_begin_with() -> None:
    fresh = count()
    shared = Prompt().then(BLOCK_TOKENS + 100, fresh)
    one, other = shared.then(BLOCK_TOKENS, fresh), shared.then(3 * BLOCK_TOKENS, fresh)
    assert (shared.tokens, len(shared.blocks)) == (BLOCK_TOKENS + 100, 1)
    assert (len(one.blocks), len(other.blocks)) == (2, 4)
    assert set(one.blocks) & set(other.blocks) == set(shared.blocks)


def test_a_block_begins_when_it_is_full() -> None:
    fresh = count()
    prompt = Prompt().then(BLOCK_TOKENS - 1, fresh)
    assert prompt.blocks == ()
    assert prompt.then(1, fresh).blocks == (0,)
