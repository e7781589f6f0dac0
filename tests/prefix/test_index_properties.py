"""The index against a naive reference, over random histories; every answer must be equal.

The reference knows neither trees nor nodes: per backend, a dict from each held prefix to when it
was last used, searched from end to end whenever something must go.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.prefix.blocks import BlockScale
from gateway.prefix.holder import Booking
from gateway.prefix.index import TIME_BITS, PrefixIndex
from tests.prefix.soundness import all_nodes, assert_sound

MAX_BLOCKS = 40
Prompt = list[int]
Prefix = tuple[int, ...]


@dataclass
class Block:
    used: int
    accepted: float
    bookings: set[int] | None
    """None: held for good."""


@dataclass
class Cache:
    capacity: float
    stated: float
    accepted: float = 0.0
    held: dict[Prefix, Block] = field(default_factory=dict)

    def successor(self) -> Cache:
        return Cache(self.capacity, self.stated)


class Reference:
    def __init__(self, tokens: Callable[[int], float]) -> None:
        self.tokens = tokens
        self.caches: dict[str, Cache] = {}
        self.bookings: dict[int, tuple[Cache, Prefix]] = {}
        self.evicted = 0
        self.time = 0

    def weight(self, prefix: Prefix) -> float:
        return self.tokens(len(prefix)) - self.tokens(len(prefix) - 1)

    def size(self, cache: Cache) -> float:
        return sum(map(self.weight, cache.held))

    def blocks(self) -> int:
        return sum(len(cache.held) for cache in self.caches.values())

    def book(self, id: str, prompt: Prompt, number: int) -> None:
        cache = self.caches[id]
        while prompt and (self.tokens(len(prompt)) > cache.capacity or len(prompt) > MAX_BLOCKS):
            prompt = prompt[:-1]
        self.time += 1
        for length in range(1, len(prompt) + 1):
            block = cache.held.setdefault(tuple(prompt[:length]), Block(0, 0, set()))
            block.used, block.accepted = self.time, cache.accepted
            if block.bookings is not None:
                block.bookings.add(number)
        self.bookings[number] = (cache, tuple(prompt))
        self.evict()

    def evict(self) -> None:
        for cache in self.caches.values():
            while self.size(cache) > cache.capacity:
                self.evict_one([cache])
        while self.blocks() > MAX_BLOCKS:
            self.evict_one(list(self.caches.values()))

    def evict_one(self, caches: list[Cache]) -> None:
        _, _, prefix, cache = min(
            (
                (block.used, -len(prefix), prefix, cache)
                for cache in caches
                for prefix, block in cache.held.items()
            ),
            key=lambda each: each[:2],
        )
        del cache.held[prefix]
        self.evicted += 1

    def resolve(self, number: int, *, confirmed: bool) -> None:
        if number not in self.bookings:
            return
        cache, prompt = self.bookings.pop(number)
        for length in range(1, len(prompt) + 1):
            prefix = prompt[:length]
            block = cache.held.get(prefix)
            if block is None or block.bookings is None or number not in block.bookings:
                continue
            block.bookings.remove(number)
            if confirmed:
                block.bookings = None
                cache.accepted += self.weight(prefix)
            elif not block.bookings:
                del cache.held[prefix]

    def match(self, prompt: Prompt) -> tuple[dict[str, int], dict[str, float]]:
        blocks: dict[str, int] = {}
        tokens: dict[str, float] = {}
        for id, cache in self.caches.items():
            for length in range(1, len(prompt) + 1):
                prefix = tuple(prompt[:length])
                if prefix not in cache.held:
                    break
                since = cache.accepted - cache.held[prefix].accepted
                capacity = cache.capacity
                doubt = 0.0
                if since >= capacity / 2:
                    doubt = math.exp(min((since - capacity) / (0.1 * capacity), 500))
                blocks[id] = length
                tokens[id] = tokens.get(id, 0) + self.weight(prefix) / (1 + doubt)
        return blocks, tokens


ids = st.sampled_from("abc")
capacities = st.integers(1, 30).map(float)

# Stems of a few kinds and free tails, so that many prompts part late.
prompts = st.builds(
    lambda kind, length, tail: [kind] * length + tail,
    st.integers(0, 2),
    st.integers(0, 12),
    st.lists(st.integers(0, 2), max_size=6),
)


class Histories(RuleBasedStateMachine):
    scale: BlockScale

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(self.scale, MAX_BLOCKS)
        self.reference = Reference(self.scale.tokens)
        self.bookings: list[Booking] = []
        self.told = 0
        self.add("a", 12.0)
        self.add("b", 30.0)

    def chain(self, prompt: Prompt) -> bytes:
        ends = [self.scale.span(n) for n in range(len(prompt) + 1)]
        parts = [bytes([each]) * (ends[n + 1] - ends[n]) for n, each in enumerate(prompt)]
        return self.scale.chain(b"", b"".join(parts))

    def add(self, id: str, capacity: float) -> None:
        self.index.add_backend(id, capacity)
        self.reference.caches[id] = Cache(capacity, capacity)

    @rule(id=ids, capacity=capacities)
    def add_or_resize(self, id: str, capacity: float) -> None:
        if id in self.reference.caches:
            self.index.set_capacity(id, capacity)
            cache = self.reference.caches[id]
            if capacity != cache.stated:
                cache.capacity = cache.stated = capacity
            self.reference.evict()
        else:
            self.add(id, capacity)

    # One rule, so that most steps add to a history rather than end it.
    @rule(id=ids, how=st.sampled_from(["reset", "reset", "remove", "flush"]))
    def lose(self, id: str, how: str) -> None:
        caches = self.reference.caches
        if how == "flush":
            self.index.flush()
            caches |= {id: cache.successor() for id, cache in caches.items()}
            assert self.index.stats().nodes == self.index.stats().blocks == 0
        elif id in caches and how == "reset":
            self.index.reset_backend(id)
            caches[id] = caches[id].successor()
        elif id in caches:
            self.index.remove_backend(id)
            del caches[id]

    @rule(id=ids, prompt=prompts)
    def book(self, id: str, prompt: Prompt) -> None:
        if id in self.reference.caches:
            self.reference.book(id, prompt, len(self.bookings))
            self.bookings.append(self.index.book(id, self.chain(prompt)))

    @rule(id=ids, prompt=prompts)
    def learn(self, id: str, prompt: Prompt) -> None:
        if id in self.reference.caches:
            self.book(id, prompt)
            self.index.confirm(self.bookings[-1])
            self.reference.resolve(len(self.bookings) - 1, confirmed=True)

    @rule(id=ids, prompt=prompts)
    def be_told(self, id: str, prompt: Prompt) -> None:
        """Another replica has had it booked and confirmed, just now."""
        holder = self.index.holder(id)
        if holder is not None:
            self.told += 1
            self.index.hold(holder, self.chain(prompt), self.index._time + 1 + (1 << TIME_BITS))
            self.reference.book(id, prompt, -self.told)
            self.reference.resolve(-self.told, confirmed=True)

    # Resolved bookings stay in the list, so that some are resolved twice.
    @precondition(lambda self: self.bookings)
    @rule(data=st.data(), confirmed=st.booleans())
    def resolve(self, data: st.DataObject, confirmed: bool) -> None:
        latest = len(self.bookings) - 1
        number = data.draw(st.integers(max(latest - 6, 0), latest))
        resolve = self.index.confirm if confirmed else self.index.withdraw
        resolve(self.bookings[number])
        self.reference.resolve(number, confirmed=confirmed)

    @precondition(lambda self: self.bookings)
    @rule(data=st.data(), cached=st.sampled_from([0, 0, 1, 5, 20]))
    def report(self, data: st.DataObject, cached: float) -> None:
        latest = len(self.bookings) - 1
        booking = self.bookings[data.draw(st.integers(max(latest - 6, 0), latest))]
        id, caches = booking.backend_id, self.reference.caches
        lost = self.index.learn(booking, cached)
        if id in caches:
            capacity = self.index.stats().backends[id].capacity_tokens
            if lost:
                caches[id] = caches[id].successor()
            caches[id].capacity = capacity
            self.reference.evict()

    @rule(prompt=prompts)
    def match(self, prompt: Prompt) -> None:
        blocks, tokens = self.reference.match(prompt)
        match = self.index.match(self.chain(prompt))
        assert match.blocks == blocks
        assert match.tokens == pytest.approx(tokens, abs=1e-9)

    @rule(records=st.integers(0, 3))
    def reclaim(self, records: int) -> None:
        self.index.reclaim(records)

    @invariant()
    def every_prefix_matches_as_it_should(self) -> None:
        for cache in self.reference.caches.values():
            for prefix in cache.held:
                self.match([*prefix, 0])

    @invariant()
    def counters_equal_a_recount(self) -> None:
        reference, stats = self.reference, self.index.stats()
        assert stats.backends == {
            id: (len(cache.held), reference.size(cache), cache.capacity)
            for id, cache in reference.caches.items()
        }
        for id, cache in reference.caches.items():
            assert stats.backends[id].tokens <= cache.capacity
        assert stats.held_blocks == reference.blocks()
        assert stats.held_blocks + stats.dead_blocks <= MAX_BLOCKS
        assert stats.evicted_blocks == reference.evicted
        assert stats.bookings == len(reference.bookings)
        nodes = all_nodes(self.index)
        assert stats.nodes == len(nodes)
        assert stats.blocks == sum(len(node.edge) // 8 for node in nodes)
        records = sum(len(node.edge) // 8 * len(node.holders) for node in nodes)
        assert records == stats.held_blocks + stats.dead_blocks
        if not stats.dead_blocks:
            held = {prefix for cache in reference.caches.values() for prefix in cache.held}
            assert stats.blocks == len(held)

    @invariant()
    def the_tree_is_sound(self) -> None:
        assert_sound(self.index)

    def teardown(self) -> None:
        """With its backends gone and reclaimed, nothing is left."""
        for id in self.reference.caches:
            self.index.remove_backend(id)
        self.index.reclaim(10_000)
        stats = self.index.stats()
        assert (stats.nodes, stats.blocks, stats.dead_blocks) == (0, 0, 0)


class UniformHistories(Histories):
    scale = BlockScale.uniform(4)


class GrowingHistories(Histories):
    scale = BlockScale(((2, 2), (3, 4)), 8)


LIMITS = settings(max_examples=100, stateful_step_count=60, deadline=None)

TestUniform = UniformHistories.TestCase
TestUniform.settings = LIMITS
TestGrowing = GrowingHistories.TestCase
TestGrowing.settings = LIMITS
