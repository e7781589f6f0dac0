"""What the admin API says and takes. Each struct is also a schema in its OpenAPI document.

Durations are in seconds. Prompts never appear, only sizes and digests.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.config import Section
from gateway.fleet.backend import Backend, BackendState, Source
from gateway.fleet.breaker import Breaker, BreakerState
from gateway.prefix.stats import IndexStats
from gateway.scheduling.hold import Hold
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.types import EngineKind, Priority, Reason, Role, WorkClass


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything that is answered."""


class ErrorDetail(View, frozen=True):
    message: str
    type: str
    param: str | None = None
    """The field or header that is wrong."""


class ErrorView(View, frozen=True):
    """The body of every answer that is an error."""

    error: ErrorDetail


class LoadView(View, frozen=True):
    """What a backend is working on for this gateway.

    `decoding` requests are past their first token, `pending_tokens` are uncached prompt tokens of
    those that are not, `context_tokens` all their prompt tokens. `prefill_rate` is in tokens a
    second.
    """

    in_flight: int
    decoding: int
    pending_tokens: int
    pending_seconds: float
    """The same as time, less what should be done of it by now."""
    context_tokens: int
    prefill_rate: float
    step_seconds: float
    stream_seconds: float


class BreakerView(View, frozen=True):
    """Whether requests that fail keep others away from a backend.

    `closed` sends all, `open` none, `half_open` a few at a time until one is served.
    """

    state: BreakerState
    cause: str
    """The failure that opened it; empty while it is closed."""
    since_seconds: float
    """How long it has been in this state."""
    until_seconds: float | None
    """In how long it is tried again; null unless it is open."""
    failures: int
    """Requests that failed by the backend's fault within the window."""
    trials: int
    """Requests that try it at the moment."""

    @classmethod
    def of(cls, breaker: Breaker, now: float) -> BreakerView:
        """Args:
        now: seconds, on the gateway's clock.
        """
        return cls(
            state=breaker.state,
            cause=breaker.cause,
            since_seconds=now - breaker.since,
            until_seconds=None if breaker.until is None else max(0.0, breaker.until - now),
            failures=breaker.failures,
            trials=0 if breaker.trials is None else breaker.trials.out,
        )


class ReportedView(View, frozen=True):
    """What an engine says of its own load, whoever sent it; null where it does not say."""

    running: int | None
    waiting: int | None
    waiting_tokens: int | None
    """Uncached prompt tokens of those."""
    kv_use: float | None
    """Share of its KV cache that is in use."""
    others: int
    """Requests, running or waiting, that this gateway did not send."""
    age: float
    """How long ago it said so."""

    @classmethod
    def of(cls, load: BackendLoad, now: float) -> ReportedView | None:
        said = load.reported
        if said is None:
            return None
        return cls(
            running=said.running,
            waiting=said.waiting,
            waiting_tokens=said.waiting_tokens,
            kv_use=said.kv_use,
            others=load.others.requests,
            age=now - said.at,
        )


class BackendView(View, frozen=True):
    """A backend. What is null is not known, or not yet."""

    id: str
    url: str
    kind: EngineKind | None
    role: Role
    models: list[str]
    adapters: dict[str, str]
    """Of the models, those that are LoRA adapters, and what each belongs to."""
    max_model_len: dict[str, int]
    state: BackendState
    state_seconds: float
    """How long it has been in this state."""
    cause: str
    """Why it is in this state, or what is wrong with it; empty when all is well."""
    failed_probes: int
    """In a row."""
    breaker: BreakerView
    busy_seconds: float | None
    """How long it is still avoided because it said that it has too much to do; null when it is
    not."""
    source: Source
    capacity_tokens: int | None
    block_size: int | None
    load: LoadView
    reported: ReportedView | None

    @classmethod
    def of(cls, backend: Backend, load: BackendLoad, now: float) -> BackendView:
        """Args:
        now: seconds, on the gateway's clock.
        """
        facts = backend.facts
        return cls(
            id=backend.id,
            url=backend.address.url,
            kind=backend.kind,
            role=backend.role,
            models=list(backend.models),
            adapters=dict(facts.adapters) if facts is not None else {},
            max_model_len=dict(facts.max_model_len) if facts is not None else {},
            state=backend.state,
            state_seconds=now - backend.since,
            cause=backend.cause,
            failed_probes=backend.failed_probes,
            breaker=BreakerView.of(backend.breaker, now),
            busy_seconds=None if backend.busy is None else max(0.0, backend.busy_until - now),
            source=backend.source,
            capacity_tokens=backend.capacity_tokens,
            block_size=facts.block_size if facts is not None else None,
            load=LoadView(
                in_flight=load.sent,
                decoding=load.decoding - load.others.decoding,
                pending_tokens=load.pending_tokens,
                pending_seconds=load.pending_seconds(now),
                context_tokens=load.context_tokens,
                prefill_rate=load.prefill_rate,
                step_seconds=load.step_seconds,
                stream_seconds=load.stream_seconds,
            ),
            reported=ReportedView.of(load, now),
        )


class DiscoveryView(View, frozen=True):
    """A configured source of backends."""

    name: str
    source: Source
    backends: list[str]
    """Ids of those that it names. One that was removed over the admin API stays away although it
    is named."""
    unreachable: int
    """How many of them do not answer their probes."""
    age_seconds: float | None
    """Since its list was last read; null when it never was."""
    failures: int
    """How often it could not be read, since the start."""
    cause: str
    """Why the last reading failed, or what was left out of the list; empty when all is well."""


class PolicyView(View, frozen=True):
    """A routing policy that can be chosen."""

    name: str
    description: str
    current: bool
    defaults: dict[str, Any]
    params_schema: dict[str, Any]
    """JSON Schema of its parameters."""


class MatchView(View, frozen=True):
    """By backend id; backends that hold nothing are absent."""

    blocks: dict[str, int]
    tokens: dict[str, float]
    """Expected cached tokens: blocks weighted by the confidence that they are still there."""


class CandidateView(View, frozen=True):
    """A backend that the request could go to.

    `score` and `terms` are the policy's; lower is better. Policies without scores give none, and
    backends without room have none.
    """

    backend: str
    room: bool
    """Whether the limits of the request's class and length let it go there."""
    hold: Hold | None
    """Why the request would be held for it now: gate (enough prefill is pending there), memory (its
    KV cache has no room) or streams (too many would miss their pace); null when it would go."""
    held: int
    """Requests of this model that wait here for it."""
    queue_seconds: float
    """Prefill that would go first: pending there, and held here."""
    prefill_seconds: float
    """The request's own there."""
    score: float | None
    terms: dict[str, float]


class HandoverView(View, frozen=True):
    """Which engine would compute the prompt, and which one generate."""

    prefill_backend: str
    decode_backend: str
    """The same one where nothing is handed over."""
    reason: str
    """As in the header x-prefixgate-handover."""


class DecisionView(View, frozen=True):
    backend: str
    reason: Reason
    why: str
    """The same in words."""
    waits: bool
    """It would be held here, and looked at again when the backend can take more."""
    handover: HandoverView | None = None
    """Null where no prefill engine serves the model."""


class Explanation(View, frozen=True):
    """What would be done with a request now.

    `decision` is null when it could not be sent anywhere; `refusal` then says why.
    """

    dialect: str
    model: str
    namespace: str
    """Digest of model, adapter and cache salt: equal where prefixes can be shared."""
    key_bytes: int
    blocks: int
    prompt_tokens: int
    """Estimated."""
    output_tokens: int
    """Expected."""
    work_class: WorkClass
    priority: Priority
    tenant: str | None
    """Digest of whom it counts for."""
    deadline: float | None
    """Seconds from now to when its first token would be due; null when there is no telling."""
    match: MatchView
    candidates: list[CandidateView]
    decision: DecisionView | None
    refusal: str | None = None


class HoldingView(View, frozen=True):
    """What a backend is believed to hold."""

    blocks: int
    tokens: float


class ReloadView(View, frozen=True):
    """What loading the config file anew did. Options by their dotted names."""

    changed: list[str]
    """Have changed in the file since it was last loaded, and hold now."""
    needs_restart: list[str]
    """Are not as the file says until the gateway is started anew."""
    overridden: list[str] | UnsetType = UNSET
    """Have changed in the file, and do not hold because something else was set over this API; not
    there when there are none."""


class IndexView(View, frozen=True):
    """The prefix index. `held_blocks` and `dead_blocks` together stay within `max_blocks`."""

    nodes: int
    blocks: int
    held_blocks: int
    dead_blocks: int
    max_blocks: int
    evicted_blocks: int
    bookings: int
    backends: dict[str, HoldingView]

    @classmethod
    def of(cls, stats: IndexStats, max_blocks: int) -> IndexView:
        return cls(
            nodes=stats.nodes,
            blocks=stats.blocks,
            held_blocks=stats.held_blocks,
            dead_blocks=stats.dead_blocks,
            max_blocks=max_blocks,
            evicted_blocks=stats.evicted_blocks,
            bookings=stats.bookings,
            backends={
                id: HoldingView(blocks=holding.blocks, tokens=holding.tokens)
                for id, holding in stats.backends.items()
            },
        )


class QueueView(View, frozen=True):
    """The queue of one class in one pool. Counts are since the pool was made."""

    waiting: int
    waiting_tokens: int
    oldest_wait: float
    granted: int
    cancelled: int
    refused: dict[str, int]
    """By reason."""


class LineView(View, frozen=True):
    """What waits for one backend."""

    waiting: int
    held_seconds: float
    """Prefill of what waits here for it, for this model or others."""
    pending_seconds: float
    """Prefill that it has and has not done."""
    open: bool
    """Whether so little is pending that requests are sent at once."""
    hold: Hold | None
    """Why the next in line is held: gate, memory or streams."""


class PoolView(View, frozen=True):
    """The backends that serve one model in one role, and who waits for them.

    The pool of the empty model takes requests that name none.
    """

    model: str
    role: Role
    backends: dict[str, LineView]
    """By id."""
    unplaced: int
    """Requests that no backend has room for."""
    tenants: int
    """How many have requests waiting."""
    queues: dict[WorkClass, QueueView]

    @classmethod
    def of(cls, pool: Pool, now: float) -> PoolView:
        """Args:
        now: seconds, on the gateway's clock.
        """
        state = pool.snapshot()
        return cls(
            model=state.model,
            role=state.role,
            backends={
                load.id: LineView(
                    waiting=state.backends[load.id],
                    held_seconds=load.held_seconds(),
                    pending_seconds=load.pending_seconds(now),
                    open=pool.is_open(load),
                    hold=pool.held_for(load),
                )
                for load in pool.backends
            },
            unplaced=state.unplaced,
            tenants=state.tenants,
            queues={
                work_class: QueueView(
                    waiting=queue.waiting,
                    waiting_tokens=queue.waiting_tokens,
                    oldest_wait=queue.oldest_wait,
                    granted=queue.granted,
                    cancelled=queue.cancelled,
                    refused={str(reason): count for reason, count in queue.refused.items()},
                )
                for work_class, queue in state.queues.items()
            },
        )


class RequestView(View, frozen=True):
    """A request under way. What is null is not decided yet."""

    id: str
    dialect: str
    model: str
    stream: bool
    phase: str
    """Where it is: body, queue, connect or answer."""
    age: float
    work_class: WorkClass | None
    priority: Priority
    tenant: str | None
    """Digest of whom it counts for."""
    prompt_tokens: int
    backend: str | None
    reason: Reason | None
    matched_tokens: float
    queue_seconds: float


class KeyView(View, frozen=True):
    """An API key: what it may, and what it has used. Limits that are null do not exist."""

    name: str
    tenant: str
    models: list[str] | None
    """Null for all."""
    max_priority: Priority
    requests_per_minute: int | None
    tokens_per_minute: int | None
    max_concurrent: int | None
    shared: bool
    """Whether what is used is what all replicas have let in; this gateway's alone without Redis,
    while it is away, and where the key has no limits."""
    requests_used: int
    """In the current minute."""
    tokens_used: int
    """In the current minute, with what is reserved for requests under way."""
    concurrent: int
    requests_total: int
    """Since the start."""
    tokens_total: int
    """Charged since the start."""
    limited: dict[str, int]
    """Requests that were held back since the start, by limit."""


class NewKeyView(View, frozen=True):
    """A key that was made. Only its hash is kept: nothing shows it again."""

    name: str
    key: str


class OverrideView(View, frozen=True):
    """One thing that was set over this API."""

    name: str
    """policy, scheduling/OPTION, backends/ID/WHAT or keys/NAME/OPTION."""
    value: Any
    """Secrets are starred."""
    age_seconds: float
    """Since it was set."""
    shared: bool | None
    """Whether Redis has it; null where there is no Redis."""
    ignored: str | None
    """Why it has no effect on this replica; null when it has."""


class OverridesView(View, frozen=True):
    """What was set over this API, and holds over what the settings say."""

    shared: bool | None
    """Whether Redis has all that was set and taken back here; null where there is no Redis."""
    version: int | None
    """Of what Redis has, as far as this replica has read it."""
    overrides: list[OverrideView]


class ExplainRequest(Section, frozen=True):
    """A request to be explained: the one that a client would send."""

    path: Annotated[str, Meta(pattern="^/")]
    method: str = "POST"
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: Any = None


class FlushRequest(Section, frozen=True):
    """What to forget: of one backend, of one model, of one model at one backend, or all."""

    backend: str | None = None
    """Its id."""
    model: str | None = None
