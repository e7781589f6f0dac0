from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.replay.oracle import Oracle, hit_ratio
from tests.loadtests.replay.made import BLOCK, request, trace

PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=30)


def names(path: list[int]) -> list[int]:
    """Each block's number stands for all up to it: the path read in base 3, with its length."""
    return [int("1" + "".join(map(str, path[:end])), 3) for end in range(1, len(path) + 1)]


@given(PATHS, st.integers(1, 12))
def test_it_is_an_lru_of_blocks_whose_tails_go_first(paths: list[list[int]], size: int) -> None:
    oracle = Oracle(BLOCK, size * BLOCK)
    last_use: dict[int, tuple[int, int]] = {}
    for time, path in enumerate(paths):
        blocks = names(path)
        expected = 0
        for block in blocks:
            if block not in last_use:
                break
            expected += 1
        assert oracle.serve(blocks, len(blocks) * BLOCK + 1) == expected * BLOCK
        last_use.update({block: (time, -depth) for depth, block in enumerate(blocks)})
        while len(last_use) > size:
            del last_use[min(last_use, key=last_use.__getitem__)]


def test_the_last_token_is_always_computed() -> None:
    oracle = Oracle(BLOCK, None)
    oracle.serve([1, 2], 2 * BLOCK)
    assert oracle.serve([1, 2], 2 * BLOCK) == BLOCK
    assert oracle.serve([1, 2], 2 * BLOCK + 1) == 2 * BLOCK


def test_the_ratio_is_one_of_tokens_after_the_warm_up() -> None:
    made = trace(
        request(0, [1], tokens=1000),
        request(10, [1], tokens=1000),
        request(11, [2], tokens=600),
    )
    assert hit_ratio(made, None, 5.0) == pytest.approx(512 / 1600)
    assert hit_ratio(made, None, 0.0) == pytest.approx(512 / 2600)
    assert hit_ratio(made, None, 99.0) == 0
