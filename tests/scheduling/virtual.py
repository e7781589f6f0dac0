"""A pool under a clock that tests turn, with requests, callers and an index to go with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import xxhash

from gateway.config import ClassLimits, PrefillLimits, Scheduling
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import Refusal, Refused, Ticket
from gateway.types import HASH_BYTES, NO_MATCH, Chain, Match, Role, WorkClass
from policies.base import Policy, RouteRequest
from policies.registry import build

PREFILL, DECODE = WorkClass.PREFILL, WorkClass.DECODE


class VirtualClock:
    def __init__(self) -> None:
        self.now = 1000.0
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Caller:
    """Submits one ticket and writes down every answer it gets."""

    def __init__(self, request: RouteRequest, **options: object) -> None:
        self.leases: list[Lease] = []
        self.refusals: list[Refusal] = []
        self.cancelled = False
        self.ticket = Ticket(request, self.granted, self.refusals.append, **options)  # type: ignore[arg-type]

    def granted(self, lease: Lease) -> None:
        self.leases.append(lease)

    def submit(self, pool: Pool) -> Caller:
        try:
            lease = pool.submit(self.ticket)
        except Refused as refused:
            self.refusals.append(refused.refusal)
        else:
            if lease is not None:
                self.granted(lease)
        return self

    def cancel(self, pool: Pool) -> None:
        pool.cancel(self.ticket)
        self.cancelled = True

    @property
    def waits(self) -> bool:
        return not (self.leases or self.refusals or self.cancelled)

    @property
    def lease(self) -> Lease:
        [lease] = self.leases
        return lease

    @property
    def refusal(self) -> Refusal:
        [refusal] = self.refusals
        return refusal


def limits(
    *,
    prefill: Mapping[str, float] | None = None,
    decode: Mapping[str, float] | None = None,
    share: float = 0.2,
) -> Scheduling:
    return Scheduling(
        prefill_share=share,
        prefill=PrefillLimits(**(prefill or {})),  # type: ignore[arg-type]
        decode=ClassLimits(**(decode or {})),  # type: ignore[arg-type]
    )


def make_pool(
    clock: VirtualClock,
    ids: str | Sequence[str] = "a",
    scheduling: Scheduling | None = None,
    policy: str | Policy = "least_load",
) -> Pool:
    chosen = build(policy, {}) if isinstance(policy, str) else policy
    pool = Pool("m", Role.UNIFIED, chosen, scheduling or Scheduling(), clock)
    pool.set_backends([BackendLoad(id) for id in ids])
    return pool


def ask(
    work_class: WorkClass = DECODE,
    tokens: int = 100,
    match: Match = NO_MATCH,
    chain: Chain = b"",
    now: float = 0.0,
) -> RouteRequest:
    return RouteRequest("m", chain, tokens, 300, match, None, work_class, now)


def is_clear(load: BackendLoad) -> bool:
    """Whether a ledger is back at zero in every entry."""
    totals = (load.in_flight, load.decoding, load.pending_tokens, load.context_tokens)
    shares = [
        (own.in_flight, own.pending, own.uncached_tokens) for own in (load.prefill, load.decode)
    ]
    return totals == (0, 0, 0, 0) and shares == [(0, 0, 0), (0, 0, 0)]


BLOCK_BYTES = 128
BLOCK_TOKENS = BLOCK_BYTES // 4


def chain_of(text: str) -> Chain:
    key, link, links = text.encode(), 0, b""
    for end in range(BLOCK_BYTES, len(key) + 1, BLOCK_BYTES):
        link = xxhash.xxh3_64_intdigest(key[end - BLOCK_BYTES : end], seed=link)
        links += link.to_bytes(HASH_BYTES, "big")
    return links


class EndlessIndex:
    """Which backend was sent which prefixes; never forgets."""

    def __init__(self) -> None:
        self._held: dict[str, set[bytes]] = {}

    def book(self, id: str, chain: Chain) -> None:
        self._held.setdefault(id, set()).update(_blocks(chain))

    def match(self, chain: Chain) -> Match:
        blocks = {}
        for id, held in self._held.items():
            count = 0
            for block in _blocks(chain):
                if block not in held:
                    break
                count += 1
            if count:
                blocks[id] = count
        return Match(blocks, {id: float(count * BLOCK_TOKENS) for id, count in blocks.items()})


def _blocks(chain: Chain) -> list[bytes]:
    return [chain[start : start + HASH_BYTES] for start in range(0, len(chain), HASH_BYTES)]
