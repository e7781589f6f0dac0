"""Sending a request to the backend it has a lease for, and telling the fleet how that went."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from math import inf

from gateway.disagg.handover import Handover, HandoverFailed, Stale
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet
from gateway.fleet.upstream import (
    Connection,
    FailureKind,
    OutOfDescriptors,
    Upstream,
    UpstreamFailure,
)
from gateway.http.body import Bodies
from gateway.http.client import ClientGone
from gateway.http.context import RequestContext
from gateway.http.engine_priority import with_priority
from gateway.http.errors import NoDescriptors
from gateway.http.failures import DROPPED
from gateway.http.headers import Headers
from gateway.http.learning import Learning
from gateway.http.naming import addressed
from gateway.http.owners import MAX_ID, Owner, Owners
from gateway.http.relay import Relay
from gateway.http.request_head import leg_head, request_head
from gateway.http.stored import Stored
from gateway.http.verdicts import Verdicts
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.lease import Lease
from gateway.telemetry.metrics import Metrics
from gateway.types import Clock

STALE = 1.0
"""Seconds within which a kept connection that was closed meanwhile is noticed, at most."""


class Dispatcher:
    """Args:
    upstreams: by backend id; the composition root keeps it in step with the fleet.
    response_headers: whether answers say which backend served them, and why; may be changed.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        upstreams: Mapping[str, Upstream],
        index: PrefixIndex,
        learning: Learning,
        verdicts: Verdicts,
        bodies: Bodies,
        owners: Owners,
        metrics: Metrics,
        clock: Clock,
        response_headers: bool,
    ) -> None:
        self._fleet = fleet
        self._upstreams = upstreams
        self._index = index
        self._learning = learning
        self._verdicts = verdicts
        self._bodies = bodies
        self._owners = owners
        self._metrics = metrics
        self._clock = clock
        self.response_headers = response_headers

    async def send(
        self, context: RequestContext, lease: Lease, *, may_retry: bool
    ) -> UpstreamFailure | None:
        """Run one exchange. The context then has its relay, which says how far it came.

        Args:
            may_retry: what can be taken back is kept back, in case another backend serves.

        Returns:
            Why nothing was sent to the client; None when the relay took over.

        Raises:
            UnknownBackend: it was removed between the grant and now.
            ClientGone: the client left while the connection was made.
            NoDescriptors: the gateway can make no more connections.
            HandoverFailed: its prefill leg failed, or is too old. Nothing of this exchange is left.
            Malformed: the model's name at this backend cannot be written into the body.
        """
        context.phase = "connect"
        backend = self._fleet.get(lease.backend_id)
        headers, handover = context.headers, context.handover
        assert headers is not None
        context.body, context.real_model, chain = addressed(context, backend, self._fleet.aliases)
        if chain:
            context.booking = self._index.book(backend.id, chain)

        def accepted() -> None:
            self._bodies.let_go(context)  # it will not be sent again; a stream lasts for minutes
            if context.booking is not None:
                self._index.confirm(context.booking)
            # Through the context: the relay holds this function, which must not hold the relay.
            self._verdicts.accepted(context, lease)
            if context.handover is not None:
                context.handover.take()
                if context.handover.transfer is not None:
                    context.handover.transfer.arrived(seen=context.record.stream)
            current = context.relay
            if current is not None and current.scanner is not None:
                lease.progress = current.scanner.count
                lease.first_token()
                if context.handover is None:
                    self._learning.first_token(lease)
                else:
                    self._learning.joined(lease)

        if handover is None:
            self._learning.dispatched(lease, streamed=context.record.stream)
        relay = context.relay = Relay(
            context.client,
            context.dialect,
            self._clock,
            self.added_headers(context),
            headers.accept_encoding,
            accepted,
            may_retry or handover is not None,  # one engine may still serve it alone
            math.ceil(self._fleet.backpressure.avoid),
            context.opened,
            self._keeper(context, backend) if context.dialect.stores else None,
        )
        context.client.on_gone = relay.cancel
        if context.client.gone:
            relay.cancel()
        try:
            await self._exchange(context, relay, backend)
        except UpstreamFailure as failure:
            self._verdicts.ended(context, lease, failure)
            return failure
        finally:
            if handover is not None and 200 <= relay.status < 400:
                broken = relay.failure
                # One that died after its head has told the other engine nothing.
                handover.answered = broken is None or broken.kind not in DROPPED
        self._verdicts.ended(context, lease, relay.failure)
        return None

    def _keeper(self, context: RequestContext, backend: Backend) -> Stored:
        """Takes the ids of what a backend keeps for a request."""
        identity = context.identity
        owner = Owner(backend.id, "" if identity is None else identity.tenant)

        def stored(id: str) -> None:
            if len(id) <= MAX_ID:
                self._owners.note(id, owner)

        return stored

    async def _exchange(self, context: RequestContext, relay: Relay, backend: Backend) -> None:
        upstream = self._upstreams[backend.id]
        head_only = context.scope["method"] == "HEAD"
        handover = context.handover
        connection = None if handover is not None and handover.fresh else upstream.idle()
        limits, ends_at = context.limits, context.ends_at
        while True:
            if connection is None:
                left = ends_at - self._clock()
                connection = await _dial(upstream, limits.connect, left, relay)
            if relay.cancelled:
                upstream.park(connection)
                raise ClientGone
            context.phase = "answer"
            if handover is None:
                body = with_priority(context, context.body, backend)
                head = request_head(context, backend, len(body), upstream.access.authorization)
            else:
                if handover.failure is not None or self._clock() > handover.send_before:
                    upstream.park(connection)
                    raise HandoverFailed(handover.failure)
                body = handover.decode_leg.body
                head = leg_head(context, backend, upstream.access, handover)
                handover.sent = True
            relay.carry(connection)
            sent_at = self._clock()
            connection.send(head, body, relay, limits, ends_at=ends_at, head_only=head_only)
            del body  # it is large, and the answer may last for minutes
            try:
                if handover is None:
                    await relay.done
                else:
                    await _decoded(relay, handover, limits.first_byte)
                return
            except UpstreamFailure as failure:
                # The backend closed an idle connection just as it was taken: nothing of the
                # request was seen, so sending it once more on a new one is safe. If it comes so
                # late that the request may have been seen, it must be one that may run twice.
                if failure.kind is not FailureKind.RESET or not connection.reused:
                    raise
                if handover is not None:  # what goes with one is sent once
                    raise HandoverFailed(Stale()) from None
                late = self._clock() - sent_at > STALE
                if late and not context.dialect.ends_with_marker:
                    raise
                self._metrics.redials += 1
                relay.start_over()
                connection = None

    def pass_on(self, context: RequestContext, status: int, headers: Headers, body: bytes) -> None:
        """Answer the client with what a backend has answered to somebody else."""
        request = context.headers
        assert request is not None
        relay = context.relay = Relay(
            context.client,
            context.dialect,
            self._clock,
            self.added_headers(context),
            request.accept_encoding,
            lambda: None,
            False,
            math.ceil(self._fleet.backpressure.avoid),
            context.opened,
        )
        context.phase = "answer"
        relay.on_head(status, headers, body)
        relay.on_end(framed=True)

    def added_headers(self, context: RequestContext) -> Headers:
        """What the gateway adds to an answer, its own or a backend's."""
        headers, record = context.headers, context.record
        request_id = headers.request_id if headers is not None else b""
        added = [(b"x-request-id", request_id or record.id.encode())]
        if self.response_headers and record.reason is not None:
            added += (
                (b"x-prefixgate-backend", record.backend.encode()),
                (b"x-prefixgate-decision", record.reason.encode()),
                (b"x-prefixgate-matched-tokens", b"%d" % record.matched_tokens),
                (b"x-prefixgate-queue-ms", b"%d" % (record.queue_seconds * 1000)),
            )
        if self.response_headers and record.placement:
            added.append(
                (
                    b"x-prefixgate-handover",
                    b"%b; %b" % (record.placement.encode(), record.placement_reason.encode()),
                )
            )
            if record.prefill_backend:
                added.append((b"x-prefixgate-prefill-backend", record.prefill_backend.encode()))
        if context.identity is not None:
            added += context.identity.key.use.headers(self._clock())
        return added


async def _decoded(relay: Relay, handover: Handover, limit: float) -> None:
    """Wait for a decode leg's answer to end.

    Args:
        limit: seconds within which its content begins. An engine that waits for a cache that never
            comes may send comments meanwhile.

    Raises:
        HandoverFailed: the prefill leg that was sent with it failed before anything had come.
        UpstreamFailure: it broke off, and nothing was sent to the client.
    """
    prefill = handover.running
    late = asyncio.get_running_loop().call_later(limit, relay.expire) if limit < inf else None
    try:
        if prefill is not None:
            await asyncio.wait((relay.done, prefill), return_when=asyncio.FIRST_COMPLETED)
            if not relay.done.done() and handover.failure is not None and relay.withdraw():
                raise HandoverFailed(handover.failure)
        await relay.done
    finally:
        if late is not None:
            late.cancel()


async def _dial(upstream: Upstream, limit: float, left: float, relay: Relay) -> Connection:
    """A new connection, unless the client leaves first.

    Args:
        limit: seconds that it may take.
        left: seconds that the request has.

    Raises:
        UpstreamFailure: there is none to be had.
        NoDescriptors: it cannot be tried.
        ClientGone: the client did not wait. The connection is kept for others once it is there.
    """
    if left <= 0:
        raise UpstreamFailure(FailureKind.TOTAL_TIMEOUT)
    dialling = asyncio.ensure_future(upstream.dial(min(limit, left)))
    await asyncio.wait((dialling, relay.done), return_when=asyncio.FIRST_COMPLETED)
    if dialling.done():
        try:
            return dialling.result()
        except OutOfDescriptors:
            raise NoDescriptors from None
        except UpstreamFailure as failure:
            if failure.kind is FailureKind.CONNECT_TIMEOUT and left < limit:
                # It was the request that had no more time, not the backend that took too long.
                raise UpstreamFailure(FailureKind.TOTAL_TIMEOUT) from None
            raise
    dialling.add_done_callback(lambda dialled: _keep(upstream, dialled))
    raise ClientGone


def _keep(upstream: Upstream, dialled: asyncio.Future[Connection]) -> None:
    if not dialled.cancelled() and dialled.exception() is None:
        upstream.park(dialled.result())
