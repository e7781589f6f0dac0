"""Replicas that learn, lose and join at random, against a plain model of what was told.

The model knows every use, by the time that it happened at, and no tree: a backend holds the blocks
that were used last in its present epoch, as many as fit. Whoever has heard everything must hold
exactly that. Whoever has lost something, and knows it, may hold less, and of what no longer fits
more, until a snapshot puts it right; but never a prefix that was not used.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.prefix.dump import dump
from gateway.shared.records import Kind
from tests.prefix.replica import Replica, chain
from tests.prefix.soundness import assert_sound

CAPACITY = 14
IDS = ("a", "b")
LEARNERS = 4

learners = st.integers(0, LEARNERS - 1)
ids = st.sampled_from(IDS)
# Stems of a few kinds and free tails, so that many prompts part late.
prompts = st.builds(
    lambda kind, length, tail: kind * length + tail,
    st.sampled_from("xyz"),
    st.integers(0, 9),
    st.text("xyz", max_size=4),
).filter(bool)
uses = st.tuples(learners, ids, prompts)


@dataclass
class Cache:
    """One epoch of a backend: every block that was used, by the time of its last use."""

    used: dict[str, int] = field(default_factory=dict)

    def use(self, prompt: str, time: int) -> None:
        for length in range(1, min(len(prompt), CAPACITY) + 1):
            prefix = prompt[:length]
            self.used[prefix] = max(self.used.get(prefix, 0), time)

    def held(self) -> set[str]:
        latest = sorted(self.used, key=lambda prefix: (-self.used[prefix], len(prefix)))
        return set(latest[:CAPACITY])


class Sharing(RuleBasedStateMachine):
    """Learners that read on as they please, a follower that reads everything at once, and one
    that hears nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.learners = [self.replica(number) for number in range(1, LEARNERS + 1)]
        self.read = [0] * LEARNERS
        self.stream: list[tuple[Kind, bytes, bytes]] = []
        self.caches: dict[tuple[str, int], Cache] = defaultdict(Cache)
        self.follower = self.replica(100)
        self.position = 0
        self.cold = False
        self.followers = 0

    def replica(self, number: int) -> Replica:
        return Replica(number, *IDS, capacity=CAPACITY)

    def sent(self, replica: Replica) -> None:
        self.stream += [(kind, record, replica.origin) for kind, record in replica.outbox]
        replica.outbox.clear()

    def deliver(self, replica: Replica, number: int) -> None:
        kind, record, origin = self.stream[number]
        if origin != replica.origin:
            replica.now += 2
            replica.shared.apply(kind, record, origin)
            self.sent(replica)

    @rule(use=uses)
    def learn(self, use: tuple[int, str, str]) -> None:
        which, id, prompt = use
        learner = self.learners[which]
        booking = learner.index.book(id, chain(prompt))
        learner.index.confirm(booking)
        self.sent(learner)
        self.caches[id, booking.holder.epoch].use(prompt, booking.time)

    @rule(which=learners, id=ids, how=st.sampled_from(["reset", "restarted", "flush"]))
    def lose(self, which: int, id: str, how: str) -> None:
        learner = self.learners[which]
        if how == "reset":
            learner.index.reset_backend(id)
        elif how == "restarted":
            learner.shared.restarted(id)
        else:
            learner.index.flush()
        self.sent(learner)

    @rule(which=learners, count=st.integers(1, 8))
    def read_on(self, which: int, count: int) -> None:
        for _ in range(count):
            if self.read[which] < len(self.stream):
                self.read[which] += 1
                self.deliver(self.learners[which], self.read[which] - 1)

    @rule(again=st.integers(1, 6))
    def hear_twice(self, again: int) -> None:
        self.position = max(self.position - again, 0)

    @rule(which=learners, between=st.lists(uses, max_size=4), fresh=st.booleans())
    def load(self, which: int, between: list[tuple[int, str, str]], fresh: bool) -> None:
        """A follower starts from a learner's snapshot, which changes while it is made, and from
        where in the stream the learner was then."""
        learner = self.learners[which]
        if fresh:
            self.followers += 1
            self.follower = self.replica(100 + self.followers)
        self.position = self.read[which]
        loader = self.follower.shared.loader()
        for chunk in dump(learner.index, learner.generations, step_uses=1):
            loader.feed(chunk)
            if between:
                self.learn(between.pop())
        loader.finish()
        self.cold = False

    @rule(dropped=st.integers(1, 3), use=uses, swapped=st.booleans())
    def damage(self, dropped: int, use: tuple[int, str, str], swapped: bool) -> None:
        """Some records never come to the follower, and others in the wrong order."""
        for _ in range(dropped):
            self.learn(use)
        lost = range(self.position, len(self.stream))
        self.position = len(self.stream)
        if swapped:
            for number in reversed(lost):
                self.deliver(self.follower, number)
        else:
            for number in lost:
                self.follower.shared.missed(self.stream[number][2])
            self.cold = True

    @invariant()
    def the_follower_holds_what_was_used(self) -> None:
        while True:
            while self.position < len(self.stream):
                self.position += 1
                self.deliver(self.follower, self.position - 1)
            # What it asks for is answered by learners that read on.
            if not any(kind is Kind.WANTED for kind, _, _ in self.stream[min(self.read) :]):
                break
            for which in range(LEARNERS):
                self.read_on(which, len(self.stream))
            if self.position == len(self.stream):
                break
        self.compare(self.follower, exact=not self.cold)

    @rule()
    def all_agree(self) -> None:
        while any(read < len(self.stream) for read in self.read):
            for which in range(LEARNERS):
                self.read_on(which, len(self.stream))
        for learner in self.learners:
            self.compare(learner, exact=True)

    def compare(self, replica: Replica, *, exact: bool) -> None:
        assert_sound(replica.index)
        every = {prefix for cache in self.caches.values() for prefix in cache.used}
        for id in IDS:
            holder = replica.index.holder(id)
            assert holder is not None
            cache = self.caches[id, holder.epoch]
            held = cache.held()
            for prefix in every:
                found = replica.held(prefix).get(id, 0)
                if exact:
                    assert found == sum(prefix[:n] in held for n in range(1, len(prefix) + 1))
                assert found == 0 or prefix[:found] in cache.used

    def teardown(self) -> None:
        """The control: one that is cut off from the stream knows nothing of all this."""
        deaf = self.replica(99)
        assert all(not deaf.held(prefix) for cache in self.caches.values() for prefix in cache.used)


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
