from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loadtests.sim.cache import BlockCache


def held(cache: BlockCache, keys: list[int], unnamed: int = 0) -> None:
    """Compute `keys` anew and give them back."""
    assert cache.admit(keys, 0, len(keys) * cache.unit_blocks + unnamed)
    for key in keys:
        assert cache.name(key)
    cache.release(keys, unnamed)


def test_a_hit_is_contiguous_from_the_start() -> None:
    cache = BlockCache(10)
    held(cache, [1, 2, 3])
    assert cache.match([1, 2, 3, 4], 4) == 3
    assert cache.match([1, 9, 3], 3) == 1
    assert cache.match([9, 2, 3], 3) == 0
    assert cache.match([1, 2, 3], 2) == 2


def test_the_tail_of_the_oldest_request_is_evicted_first() -> None:
    cache = BlockCache(6)
    held(cache, [1, 2, 3])
    held(cache, [11, 12, 13])
    assert cache.admit([], 0, 2)
    assert cache.match([1, 2, 3], 3) == 1
    assert cache.match([11, 12, 13], 3) == 3


def test_use_makes_content_young_again() -> None:
    cache = BlockCache(6)
    held(cache, [1, 2, 3])
    held(cache, [11, 12, 13])
    assert cache.admit([1, 2, 3], 3, 0)
    cache.release([1, 2, 3], 0)
    assert cache.admit([], 0, 3)
    assert cache.match([1, 2, 3], 3) == 3
    assert cache.match([11, 12, 13], 3) == 0


def test_shared_blocks_stay_in_use_until_the_last_user_leaves() -> None:
    cache = BlockCache(4)
    held(cache, [1, 2])
    assert cache.admit([1, 2], 2, 0)
    assert cache.admit([1, 2], 2, 0)
    assert cache.used == 2
    cache.release([1, 2], 0)
    assert cache.used == 2
    assert not cache.admit([], 0, 3)
    cache.release([1, 2], 0)
    assert cache.used == 0


def test_admission_needs_room_beside_the_blocks_it_reuses() -> None:
    cache = BlockCache(4)
    held(cache, [1, 2])
    assert not cache.admit([1, 2], 2, 3)
    assert cache.used == 0
    assert cache.match([1, 2], 2) == 2
    assert cache.admit([1, 2], 2, 2)
    assert cache.free == 0


def test_blocks_without_a_name_wait_their_turn_for_reuse() -> None:
    cache = BlockCache(4)
    held(cache, [1], unnamed=1)
    held(cache, [2])
    # The fourth block is blank; the next to go is the scrap of the first request, then its unit.
    assert cache.admit([], 0, 2)
    assert cache.match([1], 1) == 1
    cache.allocate(1)
    assert cache.match([1], 1) == 0
    assert cache.match([2], 1) == 1


def test_a_second_copy_gets_no_name() -> None:
    cache = BlockCache(4)
    assert cache.admit([], 0, 2)
    assert cache.name(1)
    assert not cache.name(1)
    cache.release([], 1)
    cache.release([1], 0)
    assert cache.match([1], 1) == 1
    assert cache.free == 4


def test_units_of_several_blocks_count_as_such() -> None:
    cache = BlockCache(8, unit_blocks=4)
    held(cache, [1, 2])
    assert cache.admit([1, 2], 1, 1)
    assert cache.match([1, 2], 2) == 1, "its last unit went as a whole"
    assert cache.used == 5
    assert cache.evicted == 4


def test_without_reuse_nothing_is_found() -> None:
    cache = BlockCache(4, reuse=False)
    assert cache.admit([], 0, 1)
    assert not cache.name(1)
    cache.release([], 1)
    assert cache.match([1], 1) == 0


def test_reset_is_refused_while_blocks_are_in_use() -> None:
    cache = BlockCache(4)
    held(cache, [1, 2])
    assert cache.admit([1], 1, 0)
    assert not cache.reset()
    cache.release([1], 0)
    assert cache.reset()
    assert cache.match([1], 1) == 0
    assert cache.free == 4


class AgainstBlocks(RuleBasedStateMachine):
    """The cache beside one that has every block in a list, in the order of eviction."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = BlockCache(12)
        self.queue: list[int | None] = [None] * 12
        self.users: dict[int, int] = {}
        self.requests: list[tuple[list[int], int]] = []

    @rule(name=st.integers(0, 3), length=st.integers(1, 5), unnamed=st.integers(0, 3))
    def admit(self, name: int, length: int, unnamed: int) -> None:
        keys = [name * 10 + unit for unit in range(length)]
        units = 0
        while units < length and (keys[units] in self.users or keys[units] in self.queue):
            units += 1
        assert self.cache.match(keys, length) == units
        blocks = length - units + unnamed
        rest = [block for block in self.queue if block is None or block not in keys[:units]]
        fits = len(rest) >= blocks
        assert self.cache.admit(keys, units, blocks) == fits
        if not fits:
            return
        self.queue = rest[blocks:]
        for key in keys[:units]:
            self.users[key] = self.users.get(key, 0) + 1
        named = keys[:units]
        for key in keys[units:]:
            new = key not in self.users and key not in self.queue
            assert self.cache.name(key) == new
            if new:
                self.users[key] = 1
                named.append(key)
        self.requests.append((named, length + unnamed - len(named)))

    @precondition(lambda self: self.requests)
    @rule(which=st.integers(0, 100))
    def release(self, which: int) -> None:
        named, unnamed = self.requests.pop(which % len(self.requests))
        self.cache.release(named, unnamed)
        self.queue += [None] * unnamed
        for key in reversed(named):
            self.users[key] -= 1
            if not self.users[key]:
                del self.users[key]
                self.queue.append(key)

    @invariant()
    def same_size(self) -> None:
        assert self.cache.free == len(self.queue)


TestAgainstBlocks = AgainstBlocks.TestCase


def test_what_is_not_in_use_can_be_forgotten_at_any_time() -> None:
    cache = BlockCache(8)
    assert cache.admit([], 0, 4)
    assert all(cache.name(key) for key in (1, 2, 3, 4))
    cache.release([3, 4], 0)
    cache.forget()
    assert cache.match([1, 2, 3, 4], 4) == 2
    assert (cache.used, cache.free) == (2, 6)
    cache.release([1, 2], 0)
    assert (cache.match([1], 1), cache.free) == (1, 8)
