"""What can go wrong between the gateway and a backend, and what follows from it.

Each failure is one row of `Failure`: the status that the client gets, whether another backend is
tried, who is blamed, how the request counts. Nothing else decides any of these. What the gateway
refuses by itself is in `errors`. `docs/reliability.md` shows the same table for people, and a test
holds the two together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from enum import StrEnum

import msgspec

from gateway.fleet.upstream import FailureKind
from gateway.types import Outcome


class Fault(StrEnum):
    """Whose fault a failure is."""

    CLIENT = "client"
    BACKPRESSURE = "backpressure"
    """Nobody's: the backend has too much to do."""
    BACKEND = "backend"
    TRANSPORT = "transport"
    TIMEOUT = "timeout"


class Retry(StrEnum):
    """When a failed request is sent to another backend. Never once a byte of an answer is out."""

    NEVER = "never"
    ALWAYS = "always"
    """Nothing of the request was sent."""
    INFERENCE = "inference"
    """It may have been worked on: inference may run twice, other routes could change a state."""
    IF_SET = "if set"
    """As inference, where `retries.after_timeout` says so: a long wait is not repeated unasked."""


class Blame(StrEnum):
    """What the fleet makes of a failure."""

    NOBODY = "nobody"
    BACKEND = "backend"
    """Counts for the backend's breaker."""
    BACKEND_IF_SERVED = "backend, once another one serves the request"
    """Where all fail alike it may well be the request, which must not put out the whole fleet."""
    ASKED = "nobody; the backend is asked again what it serves"
    BACKEND_IF_SILENT = "backend, if it had most of the time and sent no byte of the answer"
    AVOIDED = "backend, which is avoided for a while"
    """It is busy, not broken: its breaker does not hear of it."""


class Failure(msgspec.Struct, frozen=True):
    """One row.

    Attributes:
        name: label of `prefixgate_upstream_errors_total`, and the error's code where the gateway
            answers.
        status: what the client gets while nothing is sent yet; None for the backend's own.
        message: for the client, where the gateway answers.
    """

    name: str
    fault: Fault
    status: int | None
    retry: Retry
    blame: Blame
    message: str = ""

    @property
    def outcome(self) -> Outcome:
        return _OUTCOMES[self.fault]


_OUTCOMES = {
    Fault.CLIENT: Outcome.CLIENT_ERROR,
    Fault.BACKPRESSURE: Outcome.BACKPRESSURE,
    Fault.BACKEND: Outcome.UPSTREAM_ERROR,
    Fault.TRANSPORT: Outcome.UPSTREAM_ERROR,
    Fault.TIMEOUT: Outcome.TIMEOUT,
}

BROKEN: Mapping[FailureKind, Failure] = {
    FailureKind(row.name): row
    for row in (
        Failure(
            "connect",
            Fault.TRANSPORT,
            502,
            Retry.ALWAYS,
            Blame.BACKEND,
            "The backend could not be reached.",
        ),
        Failure(
            "connect_timeout",
            Fault.TIMEOUT,
            504,
            Retry.ALWAYS,
            Blame.BACKEND,
            "The backend did not accept a connection in time.",
        ),
        Failure(
            "reset",
            Fault.TRANSPORT,
            502,
            Retry.INFERENCE,
            Blame.BACKEND,
            "The backend closed the connection without an answer.",
        ),
        Failure(
            "incomplete",
            Fault.TRANSPORT,
            502,
            Retry.INFERENCE,
            Blame.BACKEND,
            "The backend's answer broke off: upstream body incomplete.",
        ),
        Failure(
            "protocol",
            Fault.BACKEND,
            502,
            Retry.INFERENCE,
            Blame.BACKEND,
            "The backend's answer is not valid HTTP.",
        ),
        Failure(
            "first_byte_timeout",
            Fault.TIMEOUT,
            504,
            Retry.IF_SET,
            Blame.BACKEND,
            "The backend did not begin to answer in time.",
        ),
        Failure(
            "idle_timeout",
            Fault.TIMEOUT,
            504,
            Retry.NEVER,
            Blame.BACKEND,
            "The backend stopped answering in the middle.",
        ),
        Failure(
            "total_timeout",
            Fault.TIMEOUT,
            504,
            Retry.NEVER,
            Blame.BACKEND_IF_SILENT,
            "The answer took longer than it may from beginning to end.",
        ),
        Failure(
            "hung",
            Fault.TIMEOUT,
            504,
            Retry.INFERENCE,
            Blame.NOBODY,
            "The backend hung: neither requests nor health probes were answered.",
        ),
    )
}
"""Exchanges that broke. The probes that found one hung have put the backend out already."""

DROPPED = frozenset({FailureKind.RESET, FailureKind.INCOMPLETE, FailureKind.PROTOCOL})
"""The backend, or the process that it was, let go of the request; it may well serve another."""

CLIENT_ERROR = Failure("client_error", Fault.CLIENT, None, Retry.NEVER, Blame.NOBODY)
BUSY = Failure("busy", Fault.BACKPRESSURE, None, Retry.INFERENCE, Blame.AVOIDED)
ERROR = Failure("error", Fault.BACKEND, None, Retry.INFERENCE, Blame.BACKEND_IF_SERVED)
GATEWAY_TIMEOUT = Failure(
    "gateway_timeout", Fault.BACKEND, None, Retry.IF_SET, Blame.BACKEND_IF_SERVED
)
"""A proxy in front of the engine has waited long already."""
UNSUPPORTED = Failure("unsupported", Fault.BACKEND, None, Retry.NEVER, Blame.NOBODY)
MISSING_MODEL = Failure("missing_model", Fault.BACKEND, None, Retry.INFERENCE, Blame.ASKED)
"""A 404 that says so: requests go only where their model is listed."""
ERROR_EVENT = Failure("error_event", Fault.BACKEND, None, Retry.INFERENCE, Blame.BACKEND_IF_SERVED)
"""In a stream with status 200. Tried elsewhere only where it is the first event."""

_ANSWERS = {
    429: BUSY,
    503: BUSY,
    529: BUSY,
    504: GATEWAY_TIMEOUT,
    501: UNSUPPORTED,
    505: UNSUPPORTED,
}


def refusal(status: int) -> Failure | None:
    """What an answer's status means; None when it is no failure."""
    if status < 400:
        return None
    row = _ANSWERS.get(status)
    if row is not None:
        return row
    return ERROR if status >= 500 else CLIENT_ERROR


def may_retry(failure: Failure, *, inference: bool, after_timeout: bool) -> bool:
    """Whether another backend may be tried, as far as the failure is concerned.

    Args:
        inference: the request may run twice.
        after_timeout: also when the client has waited long already.
    """
    retry = failure.retry
    if retry is Retry.ALWAYS:
        return True
    return inference and (retry is Retry.INFERENCE or (retry is Retry.IF_SET and after_timeout))


def retry_after_seconds(value: bytes) -> float | None:
    """What a Retry-After header says, as seconds or as a date; None when it says nothing."""
    text = value.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
