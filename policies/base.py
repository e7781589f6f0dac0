"""What a routing policy is: one class with one pure method.

A policy gets the facts of one request and a read-only view of the backends that can take it, and
returns a `Decision`. It does no I/O, does not block, and does not change what it is given. It may
keep state of its own (a rotation counter, a hash ring). To add one, write a class that satisfies
`Policy` and register it under the entry point group `prefixgate.policies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import ClassVar, Protocol, runtime_checkable

import msgspec

from gateway.types import NO_MATCH, Chain, Decision, Match, Priority, WorkClass


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every policy's parameters: unknown names and wrong types are refused."""


class RouteRequest(msgspec.Struct, frozen=True):
    """The facts of one request that routing may depend on.

    Attributes:
        model: the model asked for.
        chain: block hashes of its prompt; b"" when it has no prompt key.
        prompt_tokens: estimated prompt tokens.
        output_tokens: expected output tokens.
        match: what each backend is believed to hold of `chain`.
        session: the client's session key, if it sent one.
        work_class: the queue it belongs to.
        now: seconds, on the gateway's clock.
        tenant: whose it is, for fairness; "" when nobody in particular.
        priority: how it ranks against others.
        deadline: when its first token is due, on the gateway's clock.
        urgent: it is late in a pool that is mostly idle: what counts is its first token alone.
        alone: one engine has to serve all of it: no handover carries it, or one has failed.
        line: id of the backend in whose line it waits; None when it waits for none.
    """

    model: str
    chain: Chain = b""
    prompt_tokens: int = 0
    output_tokens: int = 0
    match: Match = NO_MATCH
    session: str | None = None
    work_class: WorkClass = WorkClass.DECODE
    now: float = 0.0
    tenant: str = ""
    priority: Priority = Priority.NORMAL
    deadline: float = inf
    urgent: bool = False
    alone: bool = False
    line: str | None = None


class Candidate(Protocol):
    """A backend as a policy sees it. Everything is in tokens, requests or seconds."""

    @property
    def id(self) -> str: ...
    @property
    def in_flight(self) -> int:
        """Requests dispatched and not yet finished, and what others have sent there."""

    @property
    def decoding(self) -> int:
        """Of those, the ones past their first token."""

    @property
    def pending_tokens(self) -> float:
        """Uncached prompt tokens of the requests still before their first token."""

    @property
    def context_tokens(self) -> float:
        """Prompt tokens of all requests in flight: what decode steps read."""

    @property
    def other_tokens(self) -> float:
        """Tokens of the KV cache in use beyond the prompts of `context_tokens`."""

    @property
    def capacity_tokens(self) -> float:
        """Size of the KV cache."""

    @property
    def prefill_rate(self) -> float:
        """Uncached prompt tokens per second when it prefills alone."""

    @property
    def attention_context(self) -> float:
        """Tokens of context at which a prompt token takes twice as long as the first."""

    @property
    def chunk_tokens(self) -> int:
        """Prompt tokens that a step of chunked prefill takes at most."""

    @property
    def step_seconds(self) -> float:
        """Seconds of one decode step with no other stream."""

    @property
    def stream_seconds(self) -> float:
        """Seconds that each further decoding stream adds to a step."""

    @property
    def context_seconds(self) -> float:
        """Seconds that each token of context, of any stream, adds to a step."""

    @property
    def usual_rate(self) -> float:
        """`prefill_rate` of a backend like this that is as fast as it should be."""

    def pending_seconds(self, now: float) -> float:
        """Prefill that is dispatched and not yet done."""

    def queue_seconds(self, request: RouteRequest) -> float:
        """Prefill that goes before a request: pending, and held for this backend in the gateway
        in front of it."""

    def memory_with(self, request: RouteRequest) -> float:
        """Tokens of the KV cache in use once a request runs here too: prompts, with what several
        share counted once."""

    def spoilt_streams(self, now: float, seconds: float) -> float:
        """Expected number of streams that a prefill of `seconds` would make miss their pace."""


class Policy(Protocol):
    """`choose` is called with at least one candidate; `placed` once for each request that is then
    sent to a backend."""

    name: ClassVar[str]
    late_binding: ClassVar[bool]
    """Whether a request that waits is to be chosen for anew when it can go. False for policies
    that do not look at load: their first choice stands as long as it is a candidate."""
    params_type: ClassVar[type[Params]]
    """Accepted parameters, with defaults and bounds."""

    def __init__(self, params: Params) -> None: ...

    @property
    def params(self) -> Params: ...

    def choose(self, request: RouteRequest, candidates: Sequence[Candidate]) -> Decision: ...

    def placed(self, request: RouteRequest, candidate: Candidate) -> None:
        """Take note of where a request went, if that matters to later ones."""

    def explain(
        self, request: RouteRequest, candidates: Sequence[Candidate]
    ) -> list[dict[str, float]]:
        """The terms of each candidate's score, in the candidates' order, for people to read."""


@runtime_checkable
class SharedPolicy(Protocol):
    """What a policy has besides, if its choices depend on where requests went before and replicas
    of the gateway are to choose alike."""

    name: ClassVar[str]

    def note(self) -> bytes:
        """What the replicas' policies are to know of the request that was last `placed` here."""

    def placed_elsewhere(self, note: bytes, candidate: Candidate, now: float) -> None:
        """Take note of where another replica sent a request. A note that another policy wrote is
        passed over."""
