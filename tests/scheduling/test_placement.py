"""Field cases of routing, with pool, policy and an index working together in virtual time."""

from __future__ import annotations

import pytest

from gateway.scheduling.classify import appraise
from gateway.scheduling.lease import Lease
from gateway.scheduling.pool import Pool
from tests.scheduling.virtual import (
    DECODE,
    Caller,
    EndlessIndex,
    VirtualClock,
    ask,
    chain_of,
    is_clear,
    make_pool,
)


class Front:
    """What the gateway does between a prompt's arrival and its dispatch."""

    def __init__(self, ids: str, policy: str) -> None:
        self.clock = VirtualClock()
        self.pool: Pool = make_pool(self.clock, ids, policy=policy)
        self.index = EndlessIndex()

    def send(self, text: str) -> Lease:
        chain = chain_of(text)
        match = self.index.match(chain)
        request = ask(DECODE, len(text) // 4, match, chain, self.clock.now)
        request = appraise(request, self.pool.backends, self.pool.scheduling)
        lease = Caller(request, rematch=self.index.match).submit(self.pool).lease
        self.index.book(lease.backend_id, chain)
        return lease


SYSTEM = "You are a helpful assistant. " * 212
"""6 kB."""


def turns(conversation: int) -> tuple[str, str]:
    unique = f"Question {conversation}: " + f"{conversation:05d} " * 340
    return SYSTEM + unique, SYSTEM + unique + "The answer. " * 50 + "And then? " * 20


def test_R08_a_shared_system_prompt_makes_no_monopoly() -> None:
    front = Front("abc", "prefix_affinity")
    first = []
    for conversation in range(90):
        front.clock.advance(0.01)
        first.append(front.send(turns(conversation)[0]))
    homes = [lease.backend_id for lease in first]
    assert all(homes.count(id) >= 20 for id in "abc")
    front.clock.advance(2.0)
    for lease in first:
        lease.first_token()
        lease.release()
    second = [front.send(turns(conversation)[1]) for conversation in range(90)]
    returned = sum(lease.backend_id == home for lease, home in zip(second, homes, strict=True))
    assert returned >= 81


def test_R08_second_turns_return_one_by_one_too() -> None:
    front = Front("abc", "prefix_affinity")
    homes = []
    leases = [front.send(turns(conversation)[0]) for conversation in range(90)]
    for lease in leases:
        homes.append(lease.backend_id)
        lease.first_token()
        lease.release()
    for conversation, home in enumerate(homes):
        front.clock.advance(1.0)
        lease = front.send(turns(conversation)[1])
        assert lease.backend_id == home
        lease.first_token()
        lease.release()


def test_R02_cold_misses_go_to_the_least_loaded() -> None:
    front = Front("ab", "prefix_affinity")
    a, b = front.pool.backends
    front.pool.set_backends([a])
    for number in range(20):
        front.send(f"hanging {number} " * 150)
    front.pool.set_backends([b])
    owned = front.send("a large prefix " * 3000)
    owned.first_token()
    owned.release()
    front.pool.set_backends([a, b])
    reached = [front.send(f"never seen {number} " * 150).backend_id for number in range(20)]
    assert reached.count("b") >= 18


@pytest.mark.parametrize("policy", ["prefix_affinity", "session", "consistent_hash", "least_load"])
@pytest.mark.parametrize("overlap", [True, False], ids=["at once", "one by one"])
def test_R11_requests_without_a_key_are_spread(policy: str, overlap: bool) -> None:
    front = Front("abcd", policy)
    homes = []
    for _ in range(40):
        lease = front.send("")
        homes.append(lease.backend_id)
        if not overlap:
            lease.release()
    assert all(homes.count(id) >= 5 for id in "abcd")


def test_R13_failed_retries_leave_no_trace() -> None:
    """The stream fails, the retry fails, the client leaves: every exit path gives back."""
    front = Front("ab", "least_load")
    for _ in range(5):
        attempt, retry = front.send("x" * 400), front.send("x" * 400)
        attempt.first_token()
        for lease in (attempt, retry, attempt, retry):
            lease.release()
            lease.first_token()
    assert all(is_clear(load) for load in front.pool.backends)
    homes = [front.send("y" * 400).backend_id for _ in range(20)]
    assert homes.count("a") == homes.count("b") == 10
    assert front.pool.granted(DECODE) == 30
