"""What is written down about one request; metrics and the access log are made of it."""

from __future__ import annotations

import msgspec

from gateway.types import Chain, Outcome, Priority, Reason, WorkClass


class RequestRecord(msgspec.Struct):
    """Filled while the request passes through; complete, and not changed again, once it has ended.

    No part of a prompt, an answer or a credential ever stands in here. Of tenant and session only
    digests are shown.

    Attributes:
        id: unique across replicas and restarts; what engines know it by.
        client_id: what the client calls it (x-request-id); "" without.
        dialect: name of the API it came in by.
        arrived: seconds, on the gateway's clock.
        arrived_unix: the same moment, seconds since 1970.
        model: as the client spelt it; "" when it named none.
        stream: the client asked for server-sent events.
        keyed: it had a prompt key to match by.
        tenant: whom it counts for; "" when nobody in particular.
        key: name of the API key that it showed; "" where none is needed.
        session: the client's session key; "" without one.
        priority: how it ranked.
        max_tokens: the client's cap on output tokens, None if it gave none.
        chain: hashes of its prompt's blocks, where they are wanted in the log.
        work_class: None when it ended before it was classified.
        backend: id of the chosen backend; "" when it was never routed.
        reason: of the routing decision; None when it was never routed.
        spill: why it went elsewhere although another backend held more of its prompt; None when
            it did not.
        placement: "remote" when a prefill engine was to do the prefill, "local" when the chosen
            backend was; "" where no prefill engine serves the model. What became of it in the end.
        placement_reason: why.
        fallback: why it was served by one engine although it was to be handed over; "" when not.
        prefill_backend: id of the prefill engine that did it; "" when none did.
        prefill_leg_seconds: how long that took; None when it did not, or both legs went at once.
        refusal: why admission refused it, None when it did not.
        outcome: how it ended.
        status: HTTP status, the engine's or the gateway's own; 0 when the client got none.
        prompt_bytes: of all that is prefilled, as the prompt's key has it.
        prompt_tokens: estimate at the decision.
        matched_tokens: of those, expected to be cached at the chosen backend.
        uncached_tokens: the rest, which is to be prefilled.
        queue_seconds: how long it waited for its lease.
        ttft: seconds from arrival to the first content; None when there was none, or no stream.
        tpot: mean seconds per output token after the first; None without two of them.
        duration: seconds from arrival to the end.
        output_tokens: as the engine reports it, else as counted in the stream.
        reported_prompt_tokens, reported_cached_tokens: as the engine reports them, else None. One
            that has told cached tokens before and leaves them out has said 0.
        disconnect_phase: where it was when the client left: body, queue, prefill, connect or
            answer; None when the client stayed.
    """

    id: str
    dialect: str
    client_id: str = ""
    arrived: float = 0.0
    arrived_unix: float = 0.0
    model: str = ""
    stream: bool = False
    keyed: bool = False
    tenant: str = ""
    key: str = ""
    session: str = ""
    priority: Priority = Priority.NORMAL
    max_tokens: int | None = None
    chain: Chain = b""
    work_class: WorkClass | None = None
    backend: str = ""
    reason: Reason | None = None
    spill: str | None = None
    placement: str = ""
    placement_reason: str = ""
    fallback: str = ""
    prefill_backend: str = ""
    prefill_leg_seconds: float | None = None
    refusal: str | None = None
    outcome: Outcome | None = None
    status: int = 0
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    matched_tokens: float = 0.0
    uncached_tokens: int = 0
    queue_seconds: float = 0.0
    ttft: float | None = None
    tpot: float | None = None
    duration: float = 0.0
    output_tokens: int = 0
    reported_prompt_tokens: int | None = None
    reported_cached_tokens: int | None = None
    disconnect_phase: str | None = None
