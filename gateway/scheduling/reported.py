"""What engines say of their load, held against what they were sent.

The ledger is the truth about the gateway's own requests. What an engine has beyond those, when it
is asked, is others' (clients that go there directly, other gateways) or what cannot be seen from
outside (the tokens of answers), and counts until it says something else. It never makes a backend
look idler than its ledger does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from gateway.fleet.engines.engine import EngineLoad
from gateway.types import Clock

if TYPE_CHECKING:
    from gateway.scheduling.load import BackendLoad

logger = logging.getLogger("prefixgate.scheduling")

TYPICAL_PROMPT = 1000
"""Uncached tokens assumed of a request that waits at an engine which does not say how many."""
STUCK_SECONDS = 60.0
"""After so long of the very same use of its KV cache an engine is not believed to be full: while
anything runs, its use changes with every few tokens."""
STUCK_USE = 0.5
"""Use up to which it does not matter whether it is believed."""


class Others(msgspec.Struct, frozen=True):
    """What a backend has beyond the ledger.

    Attributes:
        requests: that others have there.
        decoding: of these, the ones past their first token.
        waiting_tokens: uncached prompt tokens of those that wait.
        tokens: of the KV cache, beyond what the ledger's prompts take; never below 0.
        excess: the same, below 0 where the ledger counts more than the engine; None when the
            engine does not say, or nothing runs there that its cache could be full of.
        at: as of when, on the gateway's clock.
    """

    requests: int = 0
    decoding: int = 0
    waiting_tokens: int = 0
    tokens: int = 0
    excess: float | None = None
    at: float = 0.0

    def waiting_seconds(self, prefill_rate: float, now: float) -> float:
        """Prefill of those that wait, less what should be done of it by now."""
        left = self.waiting_tokens / prefill_rate - max(0.0, now - self.at)
        return left if left > 0.0 else 0.0


NO_OTHERS = Others()


class Reported(msgspec.Struct, frozen=True):
    """What an engine said last. None where it does not say.

    Attributes:
        running: requests in its batch, whoever sent them.
        waiting: requests in its own queue.
        waiting_tokens: uncached prompt tokens of those.
        kv_use: share of its KV cache in use, 0 to 1.
        at: when, on the gateway's clock.
    """

    running: int | None
    waiting: int | None
    waiting_tokens: int | None
    kv_use: float | None
    at: float


@dataclass(slots=True)
class _Ours:
    """What the ledger had when a backend was asked, or now if that is more: the answer was made
    somewhere in between, and nothing of ours must count twice."""

    requests: int
    pending: int
    pending_tokens: int
    memory_tokens: int

    @classmethod
    def at(cls, load: BackendLoad) -> _Ours:
        return cls(load.sent, load.pending, load.pending_tokens, load.memory_tokens)

    def or_more(self, other: _Ours) -> _Ours:
        return _Ours(
            max(self.requests, other.requests),
            max(self.pending, other.pending),
            max(self.pending_tokens, other.pending_tokens),
            max(self.memory_tokens, other.memory_tokens),
        )


@dataclass(slots=True)
class _Witness:
    """One backend as a teller of its own load.

    Attributes:
        ours: what it had of the gateway when it was asked.
        beyond, waiting: requests and waiting tokens beyond the ledger at the answer before this
            one. Only what two answers in a row agree on counts: the rest are ends and beginnings
            that the two sides see at slightly different times.
        kv_use: as said last, and `since` when it is that to the last digit.
        stuck: it has been for longer than it can be.
    """

    ours: _Ours
    beyond: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    since: float = 0.0
    stuck: bool = False

    def look_at(self, kv_use: float | None, id: str, now: float) -> None:
        """See whether the use of the cache has stood still for longer than it can."""
        if kv_use != self.kv_use:
            self.kv_use, self.since, self.stuck = kv_use, now, False
        elif (
            kv_use is not None
            and kv_use > STUCK_USE
            and now - self.since >= STUCK_SECONDS
            and not self.stuck
        ):
            self.stuck = True
            logger.warning(
                "backend %s has said for %.0f s that exactly %g of its KV cache is in use: it is "
                "not believed",
                id,
                now - self.since,
                kv_use,
            )

    def others(self, load: BackendLoad, said: EngineLoad, now: float) -> Others:
        ours = self.ours.or_more(_Ours.at(load))
        there = (said.running or 0) + (said.waiting or 0)
        requests, self.beyond = _agreed(there - ours.requests, self.beyond)
        tokens = said.waiting_tokens
        if tokens is not None:
            tokens -= ours.pending_tokens
        else:
            tokens = TYPICAL_PROMPT * min(requests, (said.waiting or 0) - ours.pending)
        waiting_tokens, self.waiting = _agreed(tokens, self.waiting)
        excess: float | None = None
        idle = said.running == 0 and not said.waiting
        self.look_at(None if idle else said.kv_use, load.id, now)
        if said.kv_use is not None and not idle and not self.stuck:
            excess = said.kv_use * load.capacity_tokens - ours.memory_tokens
        return Others(
            requests,
            min(requests, max(0, (said.running or 0) - (ours.requests - ours.pending))),
            waiting_tokens,
            max(0, int(excess)) if excess is not None else 0,
            excess,
            now,
        )


def _agreed(found: int, before: int | None) -> tuple[int, int]:
    """What two findings in a row agree on, and the one that the next is held against."""
    found = max(0, found)
    return (found if before is None else min(found, before)), found


class Reports:
    """Puts what engines say into the ledgers; satisfies `gateway.fleet.polling.LoadListener`.

    Args:
        loads: the ledgers, by backend id.
        failed: told the id of a backend that gave no answer.
    """

    def __init__(
        self, loads: Mapping[str, BackendLoad], clock: Clock, failed: Callable[[str], None]
    ) -> None:
        self._loads = loads
        self._clock = clock
        self.failed = failed
        self._witnesses: dict[str, _Witness] = {}

    def asked(self, id: str) -> None:
        load = self._loads.get(id)
        if load is None:
            return
        if load.reported_at is None:
            load.reported_at = self._clock()
        ours, witness = _Ours.at(load), self._witnesses.get(id)
        if witness is None:
            self._witnesses[id] = _Witness(ours)
        else:
            witness.ours = ours

    def answered(self, id: str, said: EngineLoad) -> None:
        load, witness = self._loads.get(id), self._witnesses.get(id)
        if load is None or witness is None:
            return
        now = load.reported_at = self._clock()
        load.reported = Reported(said.running, said.waiting, said.waiting_tokens, said.kv_use, now)
        load.set_others(witness.others(load, said, now))

    def lost(self, id: str) -> None:
        self._witnesses.pop(id, None)
        load = self._loads.get(id)
        if load is not None:
            load.reported = None
            load.set_others(NO_OTHERS)
