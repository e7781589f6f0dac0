"""How fast an engine is that several replicas keep busy."""

from __future__ import annotations

import pytest

from gateway.scheduling.lease import Lease
from gateway.scheduling.lease_record import Began, encode
from gateway.scheduling.shared_load import SharedLoad
from gateway.scheduling.speeds import Speeds
from gateway.shared.records import Kind
from tests.scheduling.replicas import Replica, deliver
from tests.scheduling.virtual import VirtualClock

TOKENS = 4000
SECONDS = 0.5
"""What the engine takes for a prompt of so many tokens."""


class Measuring(Replica):
    """Args:
    hears: what others do at the engine too.
    """

    def __init__(self, name: str, clock: VirtualClock, *, hears: bool = True) -> None:
        super().__init__(name, clock, "a")
        self.speeds = Speeds(self.loads, clock)
        self.speeds.backend_changed("a", "m", 1e6)
        self.shared = SharedLoad(self, clock, lambda: self.policy, self.speeds if hears else None)
        self.shared.attach(self.loads["a"])

    def send(self) -> Lease:
        lease = self.take(prompt_tokens=TOKENS, uncached_tokens=TOKENS)
        self.speeds.dispatched(lease, streamed=True)
        return lease

    def answer(self, lease: Lease) -> None:
        lease.first_token()
        self.speeds.first_token(lease)
        self.speeds.finished(lease)
        lease.release()

    @property
    def rate(self) -> float:
        self.speeds.refresh()
        return self.loads["a"].prefill_rate


def busy(replicas: list[Measuring], clock: VirtualClock, prompts: int = 60) -> None:
    """The engine does one prompt after the other, each replica's in turn, and never has fewer
    than two."""
    waiting = [(replicas[0], replicas[0].send())]
    for number in range(1, prompts):
        sender = replicas[number % len(replicas)]
        waiting.append((sender, sender.send()))
        deliver(replicas)
        clock.now += SECONDS
        owner, lease = waiting.pop(0)
        owner.answer(lease)
        deliver(replicas)


def alone() -> float:
    clock = VirtualClock()
    one = Measuring("one", clock)
    busy([one], clock)
    return one.rate


@pytest.mark.parametrize("count", [2, 8])
def test_an_engine_is_as_fast_as_it_is_however_many_keep_it_busy(count: int) -> None:
    clock = VirtualClock()
    replicas = [Measuring(f"{number}", clock) for number in range(count)]
    busy(replicas, clock)
    for replica in replicas:
        assert replica.rate == pytest.approx(alone(), rel=0.15)


def test_to_who_hears_nothing_of_the_others_it_seems_slow() -> None:
    clock = VirtualClock()
    replicas = [Measuring(f"{number}", clock, hears=False) for number in range(4)]
    busy(replicas, clock)
    for replica in replicas:
        assert replica.rate < 0.6 * alone()


def test_what_is_heard_all_at_once_does_not_make_it_look_fast() -> None:
    clock = VirtualClock()
    one, other = Measuring("one", clock), Measuring("other", clock)
    for _ in range(40):
        lease = other.send()
        clock.now += SECONDS
        other.answer(lease)
    known = one.rate
    deliver([one, other])
    assert one.rate == pytest.approx(known)


def test_a_first_token_that_comes_out_of_time_teaches_nothing() -> None:
    clock = VirtualClock()
    one, other = Measuring("one", clock), Measuring("other", clock)
    known = one.rate
    for number in range(1, 40):
        other.send()
        deliver([one, other])
        clock.now += 10 * SECONDS
        late = encode([Began(number, round(SECONDS * 1000))])
        one.shared.apply(Kind.LOAD, late, other.origin)
    assert one.rate == pytest.approx(known)
