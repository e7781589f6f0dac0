"""Two replicas that place one new prefix at the same moment, in virtual time: do they choose alike?

Each places its own requests before engines that prefill one prompt after the other, on the load
that it knows of; of the other's it hears after a lag. Now and then both are asked where they would
place one and the same prompt that neither has seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from gateway.config import Scheduling
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.shared_load import SharedLoad
from gateway.scheduling.ticket import Ticket
from gateway.shared.records import ORIGIN_BYTES, Kind
from gateway.types import HASH_BYTES, NO_MATCH, Match, Role, WorkClass
from loadtests.sim.timeline import VirtualTimeline
from policies.base import RouteRequest
from policies.registry import build

LAG = 0.010
FLEETS = ((2, 2.0), (3, 3.0), (4, 2.0), (8, 2.0), (8, 4.0), (16, 3.0))
"""Engines, and requests per second for each."""
SEEDS = 2
GOAL = 0.95
_WARM_UP = 5.0
_SECONDS = 40.0
_BLOCKS = 40
_PREFILL_RATE = 10_000
"""Tokens per second."""
_OVERHEAD = 0.01


class Replica:
    """Satisfies `gateway.shared.records.Publisher`.

    Attributes:
        outbox: records that were published and not yet sent.
    """

    def __init__(self, name: str, timeline: VirtualTimeline, ids: Sequence[str]) -> None:
        self.origin = name.encode().ljust(ORIGIN_BYTES, b"-")
        self.outbox: list[bytes] = []
        self.policy = build("prefix_affinity", {})
        self._shared = SharedLoad(self, timeline.time, lambda: self.policy)
        loads = [BackendLoad(id) for id in ids]
        for load in loads:
            self._shared.attach(load)
        self.pool = Pool("m", Role.UNIFIED, self.policy, Scheduling(), timeline.time)
        self.pool.set_backends(loads)

    def publish(self, kind: Kind, record: bytes) -> None:
        self.outbox.append(record)

    def hear(self, other: Replica, records: Iterable[bytes]) -> None:
        for record in records:
            self._shared.apply(Kind.LOAD, record, other.origin)

    def choice(self, request: RouteRequest) -> str:
        return self.policy.choose(request, self.pool.candidates(request)).backend


class Site:
    """
    Args:
        rate: requests per second.
        lag: seconds until one hears of the other.
        shared: False for the control: neither ever does.

    Attributes:
        agreed: for each time they were asked, whether both would have chosen alike.
    """

    def __init__(self, engines: int, rate: float, seed: int, *, lag: float, shared: bool) -> None:
        self.agreed: list[bool] = []
        self._timeline = timeline = VirtualTimeline(1000.0)
        self._random = Random(seed)
        self._rate, self._lag, self._shared = rate, lag, shared
        self._held: list[tuple[bytes, str]] = []
        ids = [f"http://10.0.0.{number}:8000" for number in range(engines)]
        self._free = dict.fromkeys(ids, 0.0)
        # Each reads its list in an order of its own.
        self._replicas = [
            Replica(name, timeline, self._random.sample(ids, engines)) for name in ("one", "two")
        ]

    def run(self) -> Site:
        start = self._timeline.time()
        self._after(0.0, self._arrive)
        self._after(_WARM_UP, self._ask_both)
        self._timeline.run(start + _SECONDS)
        return self

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        self._timeline.call_at(self._timeline.time() + seconds, event)

    def _request(self, chain: bytes, tokens: int, match: Match = NO_MATCH) -> RouteRequest:
        now = self._timeline.time()
        prefill = WorkClass.PREFILL
        return RouteRequest("m", chain, tokens, 300, match, None, prefill, now, deadline=now + 2.0)

    def _new(self) -> RouteRequest:
        tokens = int(min(20_000, self._random.lognormvariate(7.0, 0.9)))
        return self._request(self._random.randbytes(_BLOCKS * HASH_BYTES), tokens)

    def _arrive(self) -> None:
        self._after(self._random.expovariate(self._rate), self._arrive)
        request = self._new()
        if self._held and self._random.random() < 0.6:
            chain, id = self._random.choice(self._held)
            match = Match({id: len(chain) // HASH_BYTES}, {id: 0.8 * request.prompt_tokens})
            request = self._request(chain + request.chain, request.prompt_tokens, match)
        replica = self._random.choice(self._replicas)

        def granted(lease: Lease) -> None:
            self._prefill(replica, request, lease)

        lease = replica.pool.submit(Ticket(request, granted, lambda refusal: None))
        if lease is not None:
            granted(lease)
        self._tell(replica)

    def _prefill(self, replica: Replica, request: RouteRequest, lease: Lease) -> None:
        id, now = lease.backend_id, self._timeline.time()
        done = max(now, self._free[id]) + _OVERHEAD + lease.uncached_tokens / _PREFILL_RATE
        self._free[id] = done
        self._held = [*self._held[-200:], (request.chain[: _BLOCKS * HASH_BYTES], id)]

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
        [other] = [other for other in self._replicas if other is not replica]

        def arrive() -> None:
            other.hear(replica, records)
            self._tell(other)

        self._after(self._lag, arrive)

    def _ask_both(self) -> None:
        self._after(self._random.uniform(0.02, 0.1), self._ask_both)
        request = self._new()
        one, two = (replica.choice(request) for replica in self._replicas)
        self.agreed.append(one == two)


def agreement(
    engines: int, per_engine: float, *, lag: float = LAG, shared: bool = True
) -> tuple[float, int]:
    """The share of the prompts that two replicas would place alike, and how many were tried."""
    asked: list[bool] = []
    for seed in range(SEEDS):
        asked += Site(engines, engines * per_engine, seed, lag=lag, shared=shared).run().agreed
    return sum(asked) / len(asked), len(asked)


@dataclass(slots=True, frozen=True)
class Row:
    """
    Attributes:
        prompts: tried.
        at_once, lagging, alone: shares placed alike with no lag, with `LAG`, and with the feed cut.
    """

    engines: int
    per_engine: float
    prompts: int
    at_once: float
    lagging: float
    alone: float


def run(fleets: Iterable[tuple[int, float]] = FLEETS) -> list[Row]:
    rows = []
    for engines, rate in fleets:
        lagging, prompts = agreement(engines, rate)
        at_once, _ = agreement(engines, rate, lag=0.0)
        alone, _ = agreement(engines, rate, shared=False)
        rows.append(Row(engines, rate, prompts, at_once, lagging, alone))
    return rows


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        f"| engines | requests per second | prompts | heard after {LAG * 1000:.0f} ms | at once |"
        " never |\n| --- | --- | --- | --- | --- | --- |"
    ]
    lines += [
        f"| {row.engines} | {row.engines * row.per_engine:.0f} | {row.prompts} |"
        f" {row.lagging:.3f} | {row.at_once:.3f} | {row.alone:.3f} |"
        for row in rows
    ]
    return "\n".join(lines)


def missed(rows: Iterable[Row]) -> list[str]:
    """What is not as it should be, a line each."""
    found = []
    for row in rows:
        if row.lagging < GOAL:
            found.append(f"{row.engines} engines: {row.lagging:.3f} of new prefixes placed alike")
        if row.alone >= GOAL:
            found.append(f"{row.engines} engines: as many with the feed cut")
    return found
