"""Replicas that place one new prefix at the same moment, each on the load that it knows of."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

import pytest

from gateway.config import Scheduling
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import Ticket
from gateway.types import HASH_BYTES, NO_MATCH, Match, Role
from policies.base import RouteRequest
from policies.registry import build
from tests.scheduling.replicas import Replica
from tests.scheduling.virtual import PREFILL, VirtualClock

LAG = 0.010
WARM_UP = 5.0
SECONDS = 40.0


class Site:
    """Replicas before engines that prefill one prompt after the other, in virtual time.

    Attributes:
        agreed: for each time they were asked, whether two replicas would have chosen alike.
    """

    def __init__(self, backends: int, rate: float, seed: int, *, lag: float, shared: bool) -> None:
        self.agreed: list[bool] = []
        self._clock = VirtualClock()
        self._random = Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._rate, self._lag, self._shared = rate, lag, shared
        self._held: list[tuple[bytes, str]] = []
        ids = [f"http://10.0.0.{number}:8000" for number in range(backends)]
        self._free = dict.fromkeys(ids, 0.0)
        self._replicas = []
        for name in ("one", "two"):
            policy = build("prefix_affinity", {})
            replica = Replica(name, self._clock, ids, policy)
            replica.loads = {id: BackendLoad(id) for id in ids}
            for load in replica.loads.values():
                replica.shared.attach(load)
            pool = Pool("m", Role.UNIFIED, policy, Scheduling(), self._clock)
            # Each reads its list in an order of its own.
            pool.set_backends(self._random.sample(list(replica.loads.values()), backends))
            self._replicas.append((replica, pool))

    def run(self) -> Site:
        start = self._clock.now
        self._after(0.0, self._arrive)
        self._after(WARM_UP, self._ask_both)
        while self._events[0][0] < start + SECONDS:
            self._clock.now, _, event = heapq.heappop(self._events)
            event()
        return self

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._clock.now + seconds, next(self._order), event))

    def _tokens(self) -> int:
        return int(min(20_000, self._random.lognormvariate(7.0, 0.9)))

    def _request(self, chain: bytes, tokens: int, match: Match = NO_MATCH) -> RouteRequest:
        now = self._clock.now
        return RouteRequest("m", chain, tokens, 300, match, None, PREFILL, now, deadline=now + 2.0)

    def _new(self) -> RouteRequest:
        return self._request(self._random.randbytes(40 * HASH_BYTES), self._tokens())

    def _arrive(self) -> None:
        self._after(self._random.expovariate(self._rate), self._arrive)
        request = self._new()
        if self._held and self._random.random() < 0.6:
            chain, id = self._random.choice(self._held)
            match = Match({id: len(chain) // HASH_BYTES}, {id: 0.8 * request.prompt_tokens})
            request = self._request(chain + request.chain, request.prompt_tokens, match)
        replica, pool = self._random.choice(self._replicas)

        def granted(lease: Lease) -> None:
            self._prefill(replica, request, lease)

        lease = pool.submit(Ticket(request, granted, lambda refusal: None))
        if lease is not None:
            granted(lease)
        self._tell(replica)

    def _prefill(self, replica: Replica, request: RouteRequest, lease: Lease) -> None:
        id, now = lease.backend_id, self._clock.now
        done = max(now, self._free[id]) + 0.01 + lease.uncached_tokens / 10_000
        self._free[id] = done
        self._held = [*self._held[-200:], (request.chain[: 40 * HASH_BYTES], id)]

        def first_token() -> None:
            lease.first_token()
            self._tell(replica)

        def end() -> None:
            lease.release()
            self._tell(replica)

        self._after(done - now, first_token)
        self._after(done - now + self._random.expovariate(1 / 5.0), end)

    def _tell(self, replica: Replica) -> None:
        records, replica.outbox = replica.outbox, []
        if not records or not self._shared:
            return
        [other] = [other for other, _ in self._replicas if other is not replica]

        def arrive() -> None:
            other.hear(replica, records)
            self._tell(other)

        self._after(self._lag, arrive)

    def _ask_both(self) -> None:
        self._after(self._random.uniform(0.02, 0.1), self._ask_both)
        request = self._new()
        one, two = (
            replica.policy.choose(request, pool.candidates(request)).backend
            for replica, pool in self._replicas
        )
        self.agreed.append(one == two)


def share(backends: int, per_backend: float, *, lag: float = LAG, shared: bool = True) -> float:
    asked: list[bool] = []
    for seed in range(2):
        rate = backends * per_backend
        asked += Site(backends, rate, seed, lag=lag, shared=shared).run().agreed
    assert len(asked) > 500
    return sum(asked) / len(asked)


@pytest.mark.parametrize(
    ("backends", "per_backend"), [(2, 2.0), (3, 3.0), (4, 2.0), (8, 2.0), (8, 4.0), (16, 3.0)]
)
def test_replicas_that_place_one_new_prefix_at_once_choose_alike(
    backends: int, per_backend: float
) -> None:
    assert share(backends, per_backend, lag=0.0) >= 0.98
    assert share(backends, per_backend) >= 0.95
    assert share(backends, per_backend, shared=False) <= 0.75
