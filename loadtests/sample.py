"""What was measured of one request."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.workload import Kind


@dataclass(slots=True, frozen=True)
class Sample:
    """One request as its client saw it.

    Attributes:
        session, turn, kind: what was asked, as the workload names it; turns count from 0.
        sent: seconds from the start of the run.
        seconds: from sending to the end of the answer.
        ttft: seconds from sending to the first content; None when there was none.
        tpot: seconds per output token after the first; None with fewer than two.
        prompt_tokens, cached_tokens, output_tokens: as the engine reported them.
        backend, decision: the gateway's response headers; "" without a gateway.
        error: why the request failed; None when it did not.
    """

    session: str
    turn: int
    kind: Kind
    sent: float
    seconds: float
    ttft: float | None
    tpot: float | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    backend: str
    decision: str
    error: str | None
