"""The index by example; test_index_properties.py holds it against a reference."""

from __future__ import annotations

import gc
import random
from itertools import pairwise

import pytest

from gateway.prefix.blocks import BlockScale
from gateway.prefix.index import RECLAIM_PER_BOOKING, PrefixIndex
from gateway.prefix.tree import Node
from gateway.types import NO_MATCH

SCALE = BlockScale.uniform(4)
"""One block is one token and one letter below."""

PLENTY = 1_000_000


def chain(text: str, namespace: bytes = b"m") -> bytes:
    return SCALE.chain(namespace, b"".join(letter.encode() * 4 for letter in text))


def make(*backends: str, capacity: float = PLENTY, max_blocks: int = PLENTY) -> PrefixIndex:
    index = PrefixIndex(SCALE, max_blocks)
    for id in backends:
        index.add_backend(id, capacity)
    return index


def learn(index: PrefixIndex, id: str, text: str) -> None:
    index.confirm(index.book(id, chain(text)))


def held(index: PrefixIndex, text: str) -> dict[str, int]:
    return dict(index.match(chain(text)).blocks)


def test_nothing_is_known_at_first() -> None:
    index = make("a")
    assert index.match(chain("abc")) is NO_MATCH
    assert index.match(b"") is NO_MATCH


def test_match_is_contiguous_and_per_backend() -> None:
    index = make("a", "b")
    learn(index, "a", "system-one")
    learn(index, "b", "system-two")
    match = index.match(chain("system-one, more"))
    assert match.blocks == {"a": 10, "b": 7}
    assert match.tokens == {"a": 10.0, "b": 7.0}


def test_tokens_follow_the_scale() -> None:
    index = PrefixIndex(BlockScale(), PLENTY)
    index.add_backend("a", PLENTY)
    key = random.Random(1).randbytes(30_000)
    index.confirm(index.book("a", BlockScale().chain(b"", key)))
    match = index.match(BlockScale().chain(b"", key[:5000] + b"else"))
    assert match.blocks == {"a": 27}
    assert match.tokens == {"a": (16 * 128 + 11 * 256) / 4}


def test_namespaces_share_nothing() -> None:
    index = make("a")
    learn(index, "a", "abc")
    assert index.match(chain("abc", b"other")) is NO_MATCH


def test_k09_a_block_in_the_middle_is_not_a_prefix() -> None:
    index = make("a", "b")
    one, two = "first prompt", "second prompt"
    learn(index, "a", one)
    learn(index, "b", two)
    assert held(index, two + one) == {"b": len(two)}
    assert held(index, one) == {"a": len(one)}
    assert held(index, "X" + one) == {}


def test_k20_the_last_block_counts() -> None:
    index = make("a")
    learn(index, "a", "four")
    assert held(index, "four") == {"a": 4}


def test_k21_only_what_was_accepted_stays() -> None:
    index = make("a", "b")
    for _ in range(3):
        booking = index.book("a", chain("prompt"))
        assert held(index, "prompt") == {"a": 6}, "siblings of a burst see the booking"
        index.withdraw(booking)
    learn(index, "b", "prompt")
    assert held(index, "prompt") == {"b": 6}


def test_overlapping_bookings_are_each_others_support() -> None:
    for last, left in ((PrefixIndex.withdraw, {}), (PrefixIndex.confirm, {"a": 4})):
        index = make("a")
        short, long = index.book("a", chain("ab")), index.book("a", chain("abcd"))
        index.withdraw(short)
        assert held(index, "abcd") == {"a": 4}
        last(index, long)
        assert held(index, "abcd") == left


def test_a_withdrawal_leaves_what_another_confirmed() -> None:
    index = make("a")
    long, short = index.book("a", chain("abcd")), index.book("a", chain("ab"))
    index.confirm(short)
    index.withdraw(long)
    assert held(index, "abcd") == {"a": 2}


def test_a_booking_counts_once() -> None:
    index = make("a")
    first = index.book("a", chain("ab"))
    second = index.book("a", chain("ab"))
    index.confirm(first)
    index.withdraw(first)
    index.withdraw(second)
    index.confirm(second)
    assert held(index, "ab") == {"a": 2}
    assert index.stats().bookings == 0


def test_a_booking_evicted_and_booked_by_another_is_the_others() -> None:
    index = make("a", capacity=4)
    lost = index.book("a", chain("abcd"))
    learn(index, "a", "WXYZ")
    mine = index.book("a", chain("abcd"))
    index.withdraw(lost)
    assert held(index, "abcd") == {"a": 4}
    index.confirm(lost)
    index.withdraw(mine)
    assert held(index, "abcd") == {}


def test_bookings_of_an_earlier_epoch_are_void() -> None:
    index = make("a", "b")
    bookings = [index.book("a", chain(text)) for text in ("ab", "cd")]
    removed = index.book("b", chain("ef"))
    index.reset_backend("a")
    index.remove_backend("b")
    index.add_backend("b", PLENTY)
    again = index.book("a", chain("ab"))
    index.confirm(bookings[1])
    index.withdraw(bookings[0])
    index.confirm(removed)
    assert held(index, "ab") == {"a": 2}
    assert held(index, "cd") == held(index, "ef") == {}
    assert index.stats().bookings == 1
    assert again.backend_id == "a"


def test_eviction_is_least_recent_first_and_takes_tails() -> None:
    index = make("a", capacity=8)
    learn(index, "a", "abcd")
    learn(index, "a", "wxyz")
    learn(index, "a", "ab")
    learn(index, "a", "mn")
    assert held(index, "abcd") == {"a": 2}
    assert held(index, "wxyz") == {"a": 4}
    learn(index, "a", "pq")
    assert held(index, "wxyz") == {"a": 2}
    assert index.stats().evicted_blocks == 4


def test_eviction_leaves_what_others_hold() -> None:
    index = make("a", "b", capacity=4)
    learn(index, "a", "abcd")
    learn(index, "b", "abcd")
    learn(index, "a", "xy")
    assert held(index, "abcd") == {"a": 2, "b": 4}


def test_the_head_of_a_chain_beyond_the_capacity_is_kept() -> None:
    index = make("a", capacity=3)
    learn(index, "a", "xy")
    learn(index, "a", "abcdefgh")
    assert held(index, "abcdefgh") == {"a": 3}
    assert held(index, "xy") == {}

    small = make("a", capacity=100, max_blocks=2)
    learn(small, "a", "abcdefgh")
    assert held(small, "abcdefgh") == {"a": 2}


def test_a_backend_smaller_than_a_block_holds_nothing() -> None:
    index = make("a", capacity=0.5)
    learn(index, "a", "abc")
    assert held(index, "abc") == {}
    assert index.stats().bookings == 0


def test_a_smaller_capacity_evicts_at_once() -> None:
    index = make("a", capacity=10)
    learn(index, "a", "abcdef")
    learn(index, "a", "xyz")
    index.set_capacity("a", 5)
    assert held(index, "abcdef") == {"a": 2}
    assert held(index, "xyz") == {"a": 3}


def test_confidence_falls_with_what_was_cached_since() -> None:
    index = make("a", capacity=1000)
    learn(index, "a", "old")
    seen = [index.match(chain("old")).tokens["a"]]
    for number in range(9):
        index.confirm(index.book("a", SCALE.chain(b"m", bytes([number]) * 400)))
        seen.append(index.match(chain("old")).tokens["a"])
    assert seen[:5] == [3.0] * 5
    assert seen[5:] == sorted(seen[5:], reverse=True)
    assert seen[9] == pytest.approx(3 / (1 + 2.718281828 ** ((903 - 1000) / 100)))
    learn(index, "a", "ol")
    assert 2.0 < index.match(chain("old")).tokens["a"] < 3.0, "the head is fresh, the tail not"


def test_withdrawn_work_is_no_ground_for_doubt() -> None:
    index = make("a", capacity=1000)
    learn(index, "a", "old")
    for number in range(50):
        index.withdraw(index.book("a", SCALE.chain(b"m", bytes([number]) * 400)))
    assert index.match(chain("old")).tokens == {"a": 3.0}


def test_confidence_survives_any_change_of_capacity() -> None:
    index = make("a", capacity=100_000)
    large = index.book("a", SCALE.chain(b"m", bytes(300_000)))
    learn(index, "a", "x")
    index.confirm(large)
    index.set_capacity("a", 2)
    match = index.match(chain("x"))
    assert match.blocks == {"a": 1}
    assert match.tokens["a"] == pytest.approx(0, abs=1e-9)


def test_l10_a_reset_voids_one_backend_only() -> None:
    index = make("a", "b")
    learn(index, "a", "prompt")
    learn(index, "b", "prompt")
    index.reset_backend("a")
    assert held(index, "prompt more") == {"b": 6}
    learn(index, "a", "pro")
    assert held(index, "prompt") == {"a": 3, "b": 6}


def test_the_dead_are_reclaimed_in_small_steps() -> None:
    index = make("a", "b")
    rng = random.Random(2)
    for _ in range(200):
        index.confirm(index.book("a", SCALE.chain(b"m", rng.randbytes(40))))
    index.reset_backend("a")
    assert index.stats().held_blocks == 0
    assert index.stats().dead_blocks == 2000
    dead = [index.stats().dead_blocks]
    while index.stats().dead_blocks:
        learn(index, "b", "x")
        dead.append(index.stats().dead_blocks)
    assert 5 < len(dead) < 200
    assert max(before - after for before, after in pairwise(dead)) < 500
    assert index.stats().nodes == 1


def test_m01_m05_the_bound_holds_throughout_a_burst_and_keeps_the_recent() -> None:
    index = make("a", "b", "c", max_blocks=1000)
    rng = random.Random(3)
    pinned = chain("in use all the time")
    last = b""
    for turn in range(1500):
        index.confirm(index.book("c", pinned))
        last = SCALE.chain(b"m", rng.randbytes(4 * rng.randint(1, 60)))
        index.book(rng.choice("ab"), last)
        if turn % 100 == 50:
            index.reset_backend("b")
        stats = index.stats()
        assert stats.held_blocks + stats.dead_blocks <= 1000
        assert stats.blocks <= 1000
    assert index.match(pinned).blocks == {"c": len(pinned) // 8}
    assert list(index.match(last).blocks.values()) == [len(last) // 8]
    assert index.stats().evicted_blocks > 10_000


def test_a_lower_bound_is_come_to_bit_by_bit() -> None:
    index = make("a", max_blocks=1000)
    for number in range(100):
        index.confirm(index.book("a", SCALE.chain(b"m", bytes([number]) * 40)))
    assert index.stats().held_blocks == 1000
    index.set_max_blocks(95)
    index.reclaim(10)
    assert index.stats().held_blocks == 900
    # What comes meanwhile takes the place of what is there.
    last = SCALE.chain(b"m", bytes([200]) * 40)
    index.confirm(index.book("a", last))
    assert index.stats().held_blocks <= 900
    for _ in range(10):
        index.reclaim(10)
    assert index.stats().held_blocks == 95
    assert index.match(last).blocks == {"a": 10}
    index.set_max_blocks(2000)
    for number in range(30):
        index.confirm(index.book("a", SCALE.chain(b"m", bytes([number]) * 40)))
    assert index.stats().held_blocks == 395


def test_the_dead_go_before_the_living() -> None:
    index = make("a", "b", max_blocks=100)
    learn(index, "b", "the oldest")
    for number in range(30):
        index.confirm(index.book("a", SCALE.chain(b"m", bytes([number]) * 12)))
    index.reset_backend("a")
    # Reclaiming on the way frees 48 blocks at most; the bound asks for more.
    assert RECLAIM_PER_BOOKING * 3 < 60
    index.confirm(index.book("b", SCALE.chain(b"m", bytes([99]) * 240)))
    assert held(index, "the oldest") == {"b": 10}
    assert index.stats().evicted_blocks == 0
    assert index.stats().held_blocks + index.stats().dead_blocks <= 100


def test_withdrawing_from_the_dead_leaves_their_records_to_reclaim() -> None:
    index = make("a")
    booking = index.book("a", chain("ab"))
    index.reset_backend("a")
    index.withdraw(booking)
    assert index.stats().dead_blocks == 2
    index.reclaim(10)
    assert (index.stats().dead_blocks, index.stats().nodes) == (0, 0)


def grow_random_prefixes(index: PrefixIndex, id: str, prompts: int) -> None:
    rng = random.Random(4)
    texts = [rng.randbytes(200)]
    for _ in range(prompts):
        base = rng.choice(texts[-50:])
        text = base[: 4 * rng.randint(0, 50)] + rng.randbytes(80)
        texts.append(text)
        index.confirm(index.book(id, SCALE.chain(b"m", text)))


def test_m02_inner_nodes_are_reclaimed() -> None:
    index = make("a", "keep", capacity=40_000)
    learn(index, "keep", "kept")
    base = index.stats().nodes
    grow_random_prefixes(index, "a", 3000)
    assert index.stats().nodes > 2000, "the prompts do force splits"
    index.set_capacity("a", 0.25)
    assert index.stats().backends["a"].blocks == 0
    assert index.stats().nodes == base
    assert index.stats().blocks == 4


def test_m04_removed_backends_leave_nothing() -> None:
    index = make("stays")
    learn(index, "stays", "kept")
    base = index.stats()
    for turn in range(200):
        id = f"pod-{turn}"
        index.add_backend(id, PLENTY)
        grow_random_prefixes(index, id, 50)
        index.remove_backend(id)
        assert index.stats().held_blocks == base.held_blocks
        assert index.stats().dead_blocks < 20_000, "reclaimed as fast as it comes"
    index.reclaim(1_000_000)
    assert index.stats() == base


def test_memory_comes_back_without_the_cycle_collector() -> None:
    def live_nodes() -> int:
        return sum(isinstance(each, Node) for each in gc.get_objects())

    gc.collect()
    before = live_nodes()
    gc.disable()
    try:
        index = make("a", "b", capacity=2000, max_blocks=3000)
        for id in ("a", "b", "a"):
            grow_random_prefixes(index, id, 300)
        index.reset_backend("a")
        index.remove_backend("b")
        index.reclaim(1_000_000)
        assert live_nodes() == before + 1, "the root"
    finally:
        gc.enable()


def test_flush_leaves_nothing_but_the_backends() -> None:
    index = make("a", "b")
    learn(index, "a", "abc")
    index.reset_backend("a")
    learn(index, "b", "abd")
    booking = index.book("b", chain("xyz"))
    index.flush()
    stats = index.stats()
    assert (stats.nodes, stats.blocks, stats.held_blocks, stats.dead_blocks) == (0, 0, 0, 0)
    assert stats.backends == {"a": (0, 0.0, PLENTY), "b": (0, 0.0, PLENTY)}
    index.confirm(booking)
    assert held(index, "xyz") == {}
    learn(index, "b", "abd")
    assert held(index, "abd") == {"b": 3}


def test_conversations_stay_one_node() -> None:
    index = make("a")
    text = "system"
    for turn in range(20):
        text += f" and turn {turn}"
        learn(index, "a", text)
    assert index.stats().nodes == 1


def test_using_a_split_path_whole_again_makes_it_one_node() -> None:
    index = make("a")
    learn(index, "a", "abcd")
    learn(index, "a", "ab")
    assert index.stats().nodes == 2
    index.book("a", chain("abcd"))
    assert index.stats().nodes == 1


def test_wrong_calls_are_refused() -> None:
    index = make("a")
    for call in (index.reset_backend, index.remove_backend):
        with pytest.raises(KeyError):
            call("x")
    with pytest.raises(KeyError):
        index.book("x", chain("ab"))
    with pytest.raises(KeyError):
        index.set_capacity("x", 1)
    with pytest.raises(ValueError, match="already"):
        index.add_backend("a", 1)
    for capacity in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="positive number"):
            index.add_backend("b", capacity)
        with pytest.raises(ValueError, match="positive number"):
            index.set_capacity("a", capacity)
    with pytest.raises(ValueError, match="at least 1"):
        PrefixIndex(SCALE, 0)
