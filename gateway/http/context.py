"""What is known of one request while it passes through the stations."""

from __future__ import annotations

import asyncio
from math import inf
from typing import NamedTuple

import msgspec

from gateway.disagg.handover import Handover
from gateway.disagg.prefill_choice import RemotePrefill
from gateway.disagg.reasons import Fallback
from gateway.fleet.breaker import Trials
from gateway.fleet.time_limits import NO_TIME_LIMITS, TimeLimits
from gateway.http.client import Client, Scope
from gateway.http.dialects.base import Dialect
from gateway.http.facts import Facts
from gateway.http.headers import RequestHeaders
from gateway.http.identity import Identity
from gateway.http.relay import Relay
from gateway.prefix.holder import Booking
from gateway.scheduling.lease import Lease
from gateway.scheduling.ticket import Refusal
from gateway.telemetry.record import RequestRecord
from policies.base import RouteRequest


class Suspect(NamedTuple):
    """A backend that failed a request which another one may serve.

    Attributes:
        sent_at: when the request was sent there, seconds on the gateway's clock.
        trial: the permit that it held.
    """

    backend: str
    cause: str
    sent_at: float
    trial: Trials | None


class Tries(msgspec.Struct):
    """Attributes:
    made: handovers begun.
    failed: prefill engines that failed it.
    stale: a kept connection was closed just as it was taken for one of them.
    last, cause: how the last of them did.
    fallback: why it is served by one engine; None while it need not be.
    """

    made: int = 0
    failed: tuple[str, ...] = ()
    stale: bool = False
    last: Fallback | None = None
    cause: BaseException | None = None
    fallback: Fallback | None = None


class RequestContext(msgspec.Struct):
    """Each station reads what the ones before it wrote and adds its own part.

    Attributes, in the order in which they are filled:
        scope, client, dialect, record: from the start.
        phase: where the request is now: body, queue, prefill, connect, answer; for people and
            metrics.
        headers, identity, body: ingress.
        held: bytes that count for `Bodies`.
        facts: what the request says of itself.
        request: what routing looks at: sizes, class, the prompt's blocks and who holds them.
        limits, ends_at: how long it may take, and when it must have ended.
        owner: id of the backend that keeps the stored response it is about; None for any backend.
        lease: admission.
        remote: where it is to be prefilled, until its prefill leg is sent.
        handover: what has it prefilled elsewhere; None while nothing does.
        tries: its handovers so far; None without any.
        real_model: what the backend calls the model, where that is asked for by an alias.
        booking: what the index was told in advance; None without a prompt key.
        relay: dispatch.
        opened: comments were sent to the client while it waited, for its turn or for a backend that
            then failed.
        quiet: seconds for which nothing was sent while it waits for its turn.
        suspects: backends that failed it, if it turns out that it can be served.
    """

    scope: Scope
    client: Client
    dialect: Dialect
    record: RequestRecord
    phase: str = "body"
    headers: RequestHeaders | None = None
    identity: Identity | None = None
    body: bytes = b""
    held: int = 0
    facts: Facts | None = None
    request: RouteRequest | None = None
    limits: TimeLimits = NO_TIME_LIMITS
    ends_at: float = inf
    owner: str | None = None
    lease: Lease | None = None
    remote: RemotePrefill | None = None
    handover: Handover | None = None
    tries: Tries | None = None
    real_model: str = ""
    booking: Booking | None = None
    relay: Relay | None = None
    opened: bool = False
    quiet: float = 0.0
    suspects: tuple[Suspect, ...] = ()
    waiting: asyncio.Future[Lease] | None = None

    # told by the pool when a ticket had to wait

    def granted(self, lease: Lease) -> None:
        waiting = self.waiting
        if waiting is None or waiting.done():
            lease.release()
        else:
            waiting.set_result(lease)

    def refused(self, refusal: Refusal) -> None:
        waiting = self.waiting
        if waiting is not None and not waiting.done():
            waiting.set_exception(refusal.error())
