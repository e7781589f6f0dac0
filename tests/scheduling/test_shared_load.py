"""What replicas count of each other. Each test of sharing has an arm in which nothing is heard."""

from __future__ import annotations

import pytest

from tests.scheduling.replicas import Replica, deliver, ledger
from tests.scheduling.virtual import DECODE, PREFILL, VirtualClock, is_clear


@pytest.mark.parametrize("shared", [True, False])
def test_another_replicas_lease_counts_as_an_own_one(shared: bool) -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock), Replica("there", clock)
    lease = there.take("a", PREFILL, 5000, 3000, b"12345678")
    own, other = there.loads["a"], here.loads["a"]
    for step in (lambda: None, lease.first_token, lease.release):
        step()
        if shared:
            deliver([here, there])
        assert (ledger(other, clock.now) == ledger(own, clock.now)) == (shared or is_clear(own))
    assert is_clear(other)


def test_another_replicas_lease_is_not_an_own_one() -> None:
    clock = VirtualClock()
    here, there = Replica("here", clock), Replica("there", clock)
    there.take("a").first_token()
    here.take("a", PREFILL)
    deliver([here, there])
    load = here.loads["a"]
    assert (load.in_flight, load.sent, load.own, load.decoding_elsewhere) == (2, 2, 1, 1)
    assert (load.of(PREFILL).own, load.of(DECODE).own) == (1, 0)
