"""The size of an engine's cache, learnt from what it reports."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from gateway.prefix.blocks import BlockScale
from gateway.prefix.capacity import MAX_RATIO, ZEROS_BEFORE_RESET, revised_limit
from gateway.prefix.index import PrefixIndex
from loadtests.sim.cache import BlockCache

SCALE = BlockScale.uniform(4)
"""One block is one token."""
CACHE = 4_000


class Engine:
    """A cache that prompts go through one after another."""

    def __init__(self, blocks: int) -> None:
        self.cache = BlockCache(blocks)

    def run(self, prompt: list[int]) -> int:
        """Tokens that were cached."""
        found = self.cache.match(prompt, len(prompt))
        assert self.cache.admit(prompt, found, len(prompt) - found)
        for block in prompt[found:]:
            assert self.cache.name(block)
        self.cache.release(prompt, 0)
        return found


def prompts(seed: int) -> Iterator[list[int]]:
    """Conversations that grow turn by turn, under shared system prompts, most of them recent."""
    chosen = random.Random(seed)
    fresh = iter(range(1, 10**9))
    systems = [[next(fresh) for _ in range(40)] for _ in range(4)]
    talks: list[list[int]] = []
    while True:
        if len(talks) < 5 or chosen.random() < 0.3:
            talks.append(chosen.choice(systems).copy())
        back = min(int(chosen.expovariate(1 / 30)), len(talks) - 1)
        talk = talks.pop(-1 - back)
        talk += [next(fresh) for _ in range(chosen.randint(5, 60))]
        yield talk.copy()
        if len(talk) < 500:
            talks.append(talk)


def chain(prompt: list[int]) -> bytes:
    return b"".join(block.to_bytes(8, "little") for block in prompt)


def make(capacity: float) -> PrefixIndex:
    index = PrefixIndex(SCALE, 1_000_000)
    index.add_backend("a", capacity)
    return index


def serve(index: PrefixIndex, engine: Engine, prompt: list[int]) -> tuple[float, int]:
    """Expected and found tokens of one request from start to end."""
    links = chain(prompt)
    expected = index.match(links).tokens.get("a", 0.0)
    booking = index.book("a", links)
    cached = engine.run(prompt)
    index.confirm(booking)
    index.learn(booking, cached)
    return expected, cached


def capacity(index: PrefixIndex) -> float:
    return index.stats().backends["a"].capacity_tokens


@pytest.mark.parametrize("believed", [0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_wrong_capacity_is_put_right(believed: float, seed: int) -> None:
    index, engine = make(believed * CACHE), Engine(CACHE)
    source = prompts(seed)
    for _ in range(4_000):
        serve(index, engine, next(source))
    late = [serve(index, engine, next(source)) for _ in range(500)]
    assert capacity(index) == pytest.approx(CACHE, rel=0.05)
    expected, found = (sum(each) for each in zip(*late, strict=True))
    assert expected == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("believed", [0.5, 2.0])
@pytest.mark.parametrize("bias", [0.95, 1.05])
def test_reports_may_be_rounded_and_converted_badly(believed: float, bias: float) -> None:
    index, engine = make(believed * CACHE), Engine(CACHE)
    source = prompts(1)
    for _ in range(4_000):
        prompt = next(source)
        booking = index.book("a", chain(prompt))
        index.confirm(booking)
        index.learn(booking, engine.run(prompt) // 4 * 4 * bias)
    assert capacity(index) == pytest.approx(CACHE, rel=0.2)


def test_a_prefix_that_was_gone_lowers_the_capacity_towards_what_came_since() -> None:
    assert revised_limit(SCALE, 1000, [(20, 600)], None, 0) == 960
    assert revised_limit(SCALE, 1000, [(5, 100), (20, 600)], None, 5 * 4) == 960
    # found, in whole or but for rounding
    assert revised_limit(SCALE, 1000, [(20, 600)], None, 20 * 4) == 1000
    assert revised_limit(SCALE, 1000, [(20, 600)], None, 18 * 4) == 1000
    # gone so early that room was not why
    assert revised_limit(SCALE, 1000, [(20, 400)], None, 0) == 1000


def test_a_prefix_that_outlived_its_eviction_raises_the_capacity() -> None:
    assert revised_limit(SCALE, 1000, [], (0, 2000), 20 * 4) == 1100
    assert revised_limit(SCALE, 1000, [], (0, 900), 20 * 4) == 1025
    assert revised_limit(SCALE, 1000, [(30, 10)], (30, 2000), 30 * 4) == 1000, "not a block more"


def test_the_capacity_stays_near_what_was_stated() -> None:
    index, engine = make(20), Engine(100_000)
    source = prompts(1)
    for _ in range(2_000):
        serve(index, engine, next(source))
    assert capacity(index) <= 20 * MAX_RATIO


def test_stating_the_same_capacity_again_keeps_what_was_learnt() -> None:
    index, engine = make(2 * CACHE), Engine(CACHE)
    source = prompts(1)
    for _ in range(1_000):
        serve(index, engine, next(source))
    learnt = capacity(index)
    assert learnt < 1.5 * CACHE
    index.set_capacity("a", 2 * CACHE)
    index.reset_backend("a")
    assert capacity(index) == learnt
    index.set_capacity("a", 3 * CACHE)
    assert capacity(index) == 3 * CACHE


def ask(index: PrefixIndex, cached: int) -> bool:
    booking = index.book("a", chain(list(range(1, 21))))
    index.confirm(booking)
    return index.learn(booking, cached)


def test_an_engine_that_lost_its_cache_is_reset() -> None:
    index = make(CACHE)
    assert not any(ask(index, cached) for cached in (0, 20))
    assert not any(ask(index, 0) for _ in range(ZEROS_BEFORE_RESET - 1))
    assert not ask(index, 20), "it has it after all"
    assert [ask(index, 0) for _ in range(ZEROS_BEFORE_RESET)] == [False] * 4 + [True]
    assert index.stats().held_blocks == 0
    assert not ask(index, 0), "nothing was expected"


def test_zeros_of_an_engine_that_never_reports_anything_else_mean_nothing() -> None:
    index = make(CACHE)
    assert not any(ask(index, 0) for _ in range(50))
    assert index.stats().backends["a"].blocks == 20


def test_what_is_not_yet_confirmed_is_not_missed() -> None:
    index = make(CACHE)
    ask(index, 20)
    links = chain(list(range(100, 130)))
    first, second = index.book("a", links), index.book("a", links)
    index.confirm(first)
    for _ in range(ZEROS_BEFORE_RESET):
        assert not index.learn(second, 0)
    assert capacity(index) == CACHE


def test_a_report_after_a_reset_or_removal_is_too_late() -> None:
    index = make(CACHE)
    booking = index.book("a", chain([1, 2, 3]))
    index.reset_backend("a")
    assert not index.learn(booking, 3)
    index.remove_backend("a")
    assert not index.learn(booking, 3)


def test_what_is_remembered_of_evictions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.prefix.holder.MAX_EVICTED", 10)
    index, source = make(100), prompts(1)
    for _ in range(200):
        index.confirm(index.book("a", chain(next(source)[:60])))
    assert index.stats().evicted_blocks > 100
    assert len(index.holder("a").evicted) == 10
