"""Cutting and hashing of prompt keys."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.prefix.blocks import BlockScale
from gateway.types import HASH_BYTES

ROOT = Path(__file__).parents[2]

# Chains of `bytes(range(256)) * 3` in the namespace b"model". They are pinned: indexes that are
# shared or kept must agree on them, so a change here is a change of format.
UNIFORM_CHAIN = "d202306c7f59b73045c143516576169467e5bfca16608e82"
DEFAULT_CHAIN = (
    "b0218fc9d56759650ad4f231f484e44d2fb93d0f1374a46f932346bee72d632f"
    "09c9c357f7682ab81aabc7b1d1d654e2"
)

SAMPLE = bytes(range(256)) * 3


def blocks_of(chain: bytes) -> list[bytes]:
    return [chain[at : at + HASH_BYTES] for at in range(0, len(chain), HASH_BYTES)]


def test_default_blocks_grow_with_depth() -> None:
    scale = BlockScale()
    sizes = [after - before for before, after in pairwise(map(scale.span, range(80)))]
    assert sizes == [128] * 16 + [256] * 16 + [512] * 32 + [1024] * 15


def test_uniform_blocks() -> None:
    scale = BlockScale.uniform(64)
    assert [scale.span(n) for n in (0, 1, 2, 1000)] == [0, 64, 128, 64_000]
    assert scale.tokens(3) == 48.0


@pytest.mark.parametrize("scale", [BlockScale(), BlockScale.uniform(7)])
def test_blocks_is_the_inverse_of_span(scale: BlockScale) -> None:
    for n in range(200):
        assert scale.blocks(scale.span(n)) == n
        assert scale.blocks(scale.span(n + 1) - 1) == n


@pytest.mark.parametrize("length", [0, 1, 127, 128, 129, 22_527, 22_528, 23_551, 23_552, 50_000])
def test_a_partial_last_block_is_dropped(length: int) -> None:
    scale = BlockScale()
    assert len(scale.chain(b"", bytes(length))) == scale.blocks(length) * HASH_BYTES


@pytest.mark.parametrize(("grades", "last"), [((), 0), (((1, 0),), 8), (((0, 8),), 8)])
def test_sizes_below_one_are_refused(grades: tuple[tuple[int, int], ...], last: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BlockScale(grades, last)


@given(
    key=st.binary(max_size=200), more=st.binary(max_size=200), size=st.integers(1, 20), at=st.data()
)
def test_equal_heads_have_equal_chains_and_they_never_meet_again(
    key: bytes, more: bytes, size: int, at: st.DataObject
) -> None:
    scale = BlockScale(((2, size), (3, 2 * size)), 3 * size)
    chain = scale.chain(b"n", key + more)
    head = scale.chain(b"n", key)
    assert chain.startswith(head)
    if not chain:
        return
    changed = at.draw(st.integers(0, scale.span(len(chain) // HASH_BYTES) - 1))
    other = bytearray(key + more)
    other[changed] ^= 1
    first = scale.blocks(changed)
    pairs = zip(blocks_of(chain), blocks_of(scale.chain(b"n", bytes(other))), strict=True)
    assert [a == b for a, b in pairs] == [n < first for n in range(len(chain) // HASH_BYTES)]


def test_the_namespace_is_the_first_link() -> None:
    scale = BlockScale.uniform(8)
    one, two = scale.chain(b"a", SAMPLE), scale.chain(b"b", SAMPLE)
    assert len(one) == len(two) == len(SAMPLE)
    assert not set(blocks_of(one)) & set(blocks_of(two))


def test_k09_a_block_stands_for_all_before_it() -> None:
    scale = BlockScale.uniform(8)
    chain = blocks_of(scale.chain(b"", b"12345678" * 5))
    assert len(set(chain)) == 5


def test_k18_hashes_are_pinned() -> None:
    assert BlockScale.uniform(256).chain(b"model", SAMPLE).hex() == UNIFORM_CHAIN
    assert BlockScale().chain(b"model", SAMPLE).hex() == DEFAULT_CHAIN


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_k18_hashes_agree_between_processes(seed: str) -> None:
    program = (
        "from gateway.prefix.blocks import BlockScale\n"
        "print(BlockScale().chain(b'model', bytes(range(256)) * 3).hex())"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == DEFAULT_CHAIN
