"""A pool under a clock that tests turn, with requests, callers and an index to go with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import ClassVar

import xxhash

from gateway.config import ClassLimits, PrefillLimits, Scheduling
from gateway.scheduling.lease import Lease
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.scheduling.ticket import Refusal, Refused, Ticket
from gateway.types import (
    HASH_BYTES,
    NO_MATCH,
    Chain,
    Decision,
    Match,
    Priority,
    Reason,
    Role,
    WorkClass,
)
from policies.base import Candidate, Params, Policy, RouteRequest
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
        self.ticket = Ticket(request, self.granted, self.refusals.append, **options)

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
    gate: float | None = None,
    **options: object,
) -> Scheduling:
    """Settings with an open gate, and no ranges of length."""
    return Scheduling(
        prefill_share=share,
        gate=gate,
        prefill=PrefillLimits(**(prefill or {})),
        decode=ClassLimits(**(decode or {})),
        **{"ranges": (), **options},
    )


ONE_SLOT = limits(prefill={"max_requests": 1}, decode={"max_requests": 1})


def make_pool(
    clock: VirtualClock,
    ids: str | Sequence[str] = "a",
    scheduling: Scheduling | None = None,
    policy: str | Policy = "least_load",
) -> Pool:
    chosen = build(policy, {}) if isinstance(policy, str) else policy
    pool = Pool("m", Role.UNIFIED, chosen, scheduling or limits(), clock)
    pool.set_backends([load_of(id) for id in ids])
    return pool


def load_of(id: str) -> BackendLoad:
    """A backend that prefills ten thousand tokens a second, however long the prompt: any goes in
    one step."""
    return BackendLoad(id, prefill_rate=10_000.0, attention_context=inf, chunk_tokens=2**40)


def ask(
    work_class: WorkClass = DECODE,
    tokens: int = 100,
    match: Match = NO_MATCH,
    chain: Chain = b"",
    now: float = 0.0,
    tenant: str = "",
    priority: Priority = Priority.NORMAL,
    deadline: float = inf,
) -> RouteRequest:
    return RouteRequest(
        "m", chain, tokens, 300, match, None, work_class, now, tenant, priority, deadline
    )


class Scripted:
    """A policy that does what the test says, and remembers what it was offered."""

    name: ClassVar[str] = "scripted"
    late_binding: ClassVar[bool] = True
    params_type: ClassVar[type[Params]] = Params

    def __init__(self, params: Params = Params()) -> None:  # noqa: B008
        self.params = params
        self.offers: list[list[str]] = []
        self.sent: list[str] = []
        self.answer: str | None = None
        self.error: Exception | None = None

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision:
        self.offers.append([candidate.id for candidate in candidates])
        if self.error is not None:
            raise self.error
        return Decision(self.answer or candidates[0].id, Reason.LOAD)

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        self.sent.append(candidate.id)

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        return []


def is_clear(load: BackendLoad) -> bool:
    """Whether a ledger is back at zero in every entry."""
    return load.pending_seconds(inf) == 0.0 and not any(
        (
            load.in_flight,
            load.decoding,
            load.pending,
            load.pending_tokens,
            load.context_tokens,
            load.memory_tokens,
            load.held_seconds(),
            load.streams,
            *(
                entry
                for own in (load.prefill, load.decode)
                for entry in (own.in_flight, own.pending, own.uncached_tokens)
            ),
            *(load.over(least).requests for least in (1, 50, 100)),
            *(load.over(least).tokens for least in (1, 50, 100)),
        )
    )


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
