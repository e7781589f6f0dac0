"""What each backend has been given and has not finished: the ledger that leases write to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gateway.fleet.breaker import Trials
from gateway.scheduling.cached import anchor, uncached_tokens
from gateway.scheduling.class_load import ClassLoad, RangeLoad
from gateway.scheduling.memory import Memory
from gateway.scheduling.reported import NO_OTHERS, Others, Reported
from gateway.scheduling.streams import Streams
from gateway.types import WorkClass
from policies.base import RouteRequest
from policies.cost import SAFE_FILL

if TYPE_CHECKING:
    from gateway.scheduling.lease import Lease
    from gateway.scheduling.line import Line

_PREFILL = WorkClass.PREFILL

_LEAST_LEFT = 0.1
"""Share of the pending work that is left at least, however long it has been under way: estimates
are too low as often as too high."""


class Journal(Protocol):
    """Is told of each lease of this replica, once each and in this order."""

    def taken(self, lease: Lease, anchor: bytes) -> None: ...

    def began(self, lease: Lease) -> None:
        """Its first token came; not told of all."""

    def ended(self, lease: Lease) -> None: ...


class BackendLoad:
    """One backend's ledger and measured rates; satisfies `policies.base.Candidate`.

    There is one for each backend, shared by all pools it belongs to, so that its limits hold over
    all of them. It outlives a backend's absence from a pool: leases still out go on counting.
    Entries are whole tokens, so that what a lease gives back is exactly what it took.

    Args:
        id: the backend's id.
        capacity_tokens: size of its KV cache.
        prefill_rate: uncached prompt tokens per second, at the start of a prompt.
        attention_context: tokens of context at which a prompt token takes twice as long.
        chunk_tokens: prompt tokens that a step takes at most.
        step_seconds: one decode step with a single stream.
        stream_seconds: what each further stream adds to a step.
        context_seconds: what each token of context adds to a step.

    The rates' defaults are those of an 8B model in 16 bits on an A100.

    Attributes:
        in_flight: requests that were dispatched and have not finished, and those of others.
        decoding: of these, the ones past their first token.
        decoding_elsewhere: of those, the ones that other replicas sent.
        others: what runs there that was not sent by this gateway, as far as the engine tells.
        other_tokens: what those hold of the KV cache, and what answers have added to prompts.
        reported: what the engine says; None when it says nothing, or what it said is too old.
        reported_at: when it last said something; before it ever has, since when it is asked.
        usual_rate: `prefill_rate` of a backend like this that is as fast as it should be.
        pace: seconds per output token that its streams are to keep to; None when any will do.
        streams: those whose pace somebody watches.
        trials: permits that requests need while the backend is not trusted; None while it is.
        journal: is told of this replica's leases; None when nobody wants to know.
    """

    __slots__ = (
        "_lines",
        "_memory",
        "_over",
        "_pending_seconds",
        "_pending_since",
        "_prefills",
        "_prompts",
        "_watchers",
        "attention_context",
        "capacity_tokens",
        "chunk_tokens",
        "context_seconds",
        "context_tokens",
        "decode",
        "decoding",
        "decoding_elsewhere",
        "id",
        "in_flight",
        "journal",
        "other_tokens",
        "others",
        "pace",
        "pending",
        "pending_tokens",
        "prefill",
        "prefill_rate",
        "reported",
        "reported_at",
        "step_seconds",
        "stream_seconds",
        "streams",
        "trials",
        "usual_rate",
    )

    def __init__(
        self,
        id: str,
        *,
        capacity_tokens: float = 500_000.0,
        prefill_rate: float = 10_000.0,
        attention_context: float = 30_000.0,
        chunk_tokens: int = 2048,
        step_seconds: float = 8e-3,
        stream_seconds: float = 3e-5,
        context_seconds: float = 8e-8,
    ) -> None:
        self.id = id
        self.capacity_tokens = capacity_tokens
        self.prefill_rate = prefill_rate
        self.attention_context = attention_context
        self.chunk_tokens = chunk_tokens
        self.step_seconds = step_seconds
        self.stream_seconds = stream_seconds
        self.context_seconds = context_seconds
        self.usual_rate = prefill_rate
        self.pace: float | None = None
        self.streams = Streams(self)
        self.trials: Trials | None = None
        self.journal: Journal | None = None
        self.in_flight = 0
        self.decoding = 0
        self.decoding_elsewhere = 0
        self.pending = 0
        self.pending_tokens = 0
        self.context_tokens = 0
        self.others: Others = NO_OTHERS
        self.other_tokens = 0
        self.reported: Reported | None = None
        self.reported_at: float | None = None
        self._memory = Memory()
        self.prefill = ClassLoad()
        self.decode = ClassLoad()
        self._pending_seconds = 0.0
        self._pending_since = 0.0
        self._prefills: OrderedDict[object, float] = OrderedDict()
        self._prompts: dict[object, int] = {}
        self._lines: tuple[Line, ...] = ()
        self._over: dict[int, RangeLoad] = {}
        self._watchers: tuple[Callable[[BackendLoad], None], ...] = ()

    def of(self, work_class: WorkClass) -> ClassLoad:
        return self.prefill if work_class is _PREFILL else self.decode

    def over(self, min_tokens: int) -> RangeLoad:
        """What is in flight of the prompts of at least `min_tokens`."""
        load = self._over.get(min_tokens)
        if load is None:
            load = self._over[min_tokens] = RangeLoad()
            for prompt_tokens in self._prompts.values():
                if prompt_tokens >= min_tokens:
                    load.add(1, prompt_tokens)
        return load

    def pending_seconds(self, now: float) -> float:
        """Prefill that is dispatched and not yet done. It shrinks while the engine works."""
        pending = self._pending_seconds
        elapsed = now - self._pending_since
        if not pending or elapsed <= 0.0:  # a request may be asked about as of its arrival
            return pending
        left = pending - elapsed
        least = _LEAST_LEFT * pending
        return left if left > least else least

    def queue_seconds(self, request: RouteRequest) -> float:
        seconds = self.pending_seconds(request.now)
        if self._pending_seconds:
            # What takes longer than it should will take longer still: an engine that hangs must
            # not look as if it were nearly done.
            overdue = request.now - self._pending_since - self._pending_seconds
            if overdue > seconds:
                seconds = overdue
        others = self.others
        if others.waiting_tokens:
            seconds += others.waiting_seconds(self.prefill_rate, request.now)
        for line in self._lines:
            if line.lanes:
                seconds += line.seconds_before(request)
        return seconds

    def held_seconds(self) -> float:
        """Prefill that waits in the gateway for this backend."""
        lanes = (
            lane
            for line in self._lines
            for tenants in line.lanes.values()
            for lane in tenants.values()
        )
        return sum(lane.seconds for lane in lanes)

    @property
    def has_permit(self) -> bool:
        """Whether it may be sent a request: it is not on trial, or has a permit left."""
        return self.trials is None or self.trials.free

    @property
    def sent(self) -> int:
        """Of the requests in flight, those that this gateway sent, all its replicas together."""
        return self.in_flight - self.others.requests

    @property
    def own(self) -> int:
        """Of those, the ones that this replica sent."""
        return self.prefill.own + self.decode.own

    @property
    def memory_tokens(self) -> int:
        """Prompt tokens in flight, those that several share counted once."""
        return self._memory.tokens

    def memory_with(self, request: RouteRequest) -> float:
        """Tokens of the KV cache that are in use once a request runs here too: its prompt, less
        what it shares with others that run already."""
        used = self._memory.tokens + self.other_tokens
        if anchor(request, self.id) in self._memory:
            return used + uncached_tokens(request, self.id)
        return used + request.prompt_tokens

    def fits_memory(self, request: RouteRequest, after: RouteRequest | None = None) -> bool:
        """Whether the KV cache has room for a request. On an idle backend it has in any case.

        Args:
            after: another that goes there first.
        """
        most = SAFE_FILL * self.capacity_tokens - self.other_tokens
        if after is not None:
            most -= after.prompt_tokens
        return (
            self._memory.tokens + request.prompt_tokens <= most
            or (not self.in_flight and after is None)
            or self.memory_with(request) - self.other_tokens <= most
        )

    def is_full(self, limit: float) -> bool:
        """Whether so large a share of the KV cache is in use, by what the engine said last and
        what was sent there or has ended since. It is not while the engine says nothing."""
        excess = self.others.excess
        if excess is None:
            return False
        return self._memory.tokens + excess >= limit * self.capacity_tokens

    def set_others(self, others: Others) -> None:
        """Count what runs here besides what this gateway has sent, in place of what it counted
        before."""
        before, self.others = self.others, others
        self.in_flight += others.requests - before.requests
        self.decoding += others.decoding - before.decoding
        self.other_tokens = others.tokens
        self.room_came_free()

    def spoilt_streams(self, now: float, seconds: float) -> float:
        if not self.streams:
            return 0.0
        return self.streams.spoilt(now, self.pending_seconds(now), seconds)

    def join(self, line: Line) -> None:
        """Have what waits in `line` count as queued here."""
        self._lines = (*self._lines, line)

    def part(self, line: Line) -> None:
        self._lines = tuple(other for other in self._lines if other is not line)

    def watch(self, changed: Callable[[BackendLoad], None]) -> None:
        """Have `changed` called whenever room comes free."""
        self._watchers = (*self._watchers, changed)

    def unwatch(self, changed: Callable[[BackendLoad], None]) -> None:
        self._watchers = tuple(watcher for watcher in self._watchers if watcher != changed)

    def take(
        self,
        lease: object,
        own: ClassLoad,
        prompt_tokens: int,
        uncached_tokens: int,
        seconds: float,
        now: float,
        anchor: bytes = b"",
    ) -> None:
        """Enter a dispatched request under its class's share `own`.

        Args:
            lease: what it is known by, until `give_back`.
            anchor: names what it shares with others of the same anchor; b"" when that is nothing.
        """
        own.in_flight += 1
        own.pending += 1
        own.uncached_tokens += uncached_tokens
        self.in_flight += 1
        self.pending += 1
        self.pending_tokens += uncached_tokens
        self._enter_prefill(lease, seconds, now)
        self.context_tokens += prompt_tokens
        self._prompts[lease] = prompt_tokens
        self._memory.take(lease, prompt_tokens, uncached_tokens, anchor)
        for least, load in self._over.items():
            if prompt_tokens >= least:
                load.add(1, prompt_tokens)

    def reprice(
        self, lease: object, own: ClassLoad, added_tokens: int, seconds: float, now: float
    ) -> None:
        """Change what a prefill that is not done yet brings; it goes behind all others."""
        own.uncached_tokens += added_tokens
        self.pending_tokens += added_tokens
        self._strike_prefill(lease, now, done=False)
        self._enter_prefill(lease, seconds, now)

    def finish_prefill(
        self, lease: object, own: ClassLoad, uncached_tokens: int, now: float, *, done: bool
    ) -> None:
        """Strike out a prefill.

        Args:
            done: false when it was broken off.
        """
        own.pending -= 1
        own.uncached_tokens -= uncached_tokens
        self.pending -= 1
        self.pending_tokens -= uncached_tokens
        self._strike_prefill(lease, now, done=done)

    def _enter_prefill(self, lease: object, seconds: float, now: float) -> None:
        if not seconds:
            # What waits for another engine's prefill must not look like one that takes too long.
            return
        if not self._prefills:
            self._pending_since = now
        self._prefills[lease] = seconds
        self._pending_seconds += seconds

    def _strike_prefill(self, lease: object, now: float, *, done: bool) -> None:
        prefills = self._prefills
        if lease not in prefills:
            return
        was_first = next(iter(prefills)) is lease
        seconds = prefills.pop(lease)
        if not prefills:
            self._pending_seconds = 0.0  # without drift
            return
        self._pending_seconds = max(0.0, self._pending_seconds - seconds)
        if was_first:
            self._pending_since = now
        elif done:
            # The rest of the time went into those before it, which are not done yet.
            self._pending_since += min(seconds, max(0.0, now - self._pending_since))

    def give_back(self, lease: object, own: ClassLoad) -> None:
        """Strike out a request that is past its prefill or has just been struck from it."""
        prompt_tokens = self._prompts.pop(lease)
        self._memory.give_back(lease)
        own.in_flight -= 1
        self.in_flight -= 1
        self.context_tokens -= prompt_tokens
        for least, load in self._over.items():
            if prompt_tokens >= least:
                load.add(-1, -prompt_tokens)

    def room_came_free(self) -> None:
        watchers = self._watchers
        if len(watchers) > 1:
            # Who is asked first gets the room: pools that share the backend take turns.
            self._watchers = (*watchers[1:], watchers[0])
        for changed in watchers:
            changed(self)
