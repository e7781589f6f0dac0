"""The proxied path: one ASGI application that takes a request through all stations.

    ingress ─► dialect ─► prefix key ─► index.match ─► classify ─► admission ─► dispatch ─► observe

There is one way through and no way back; every exit, whatever the reason, goes through `_close`,
which gives back what the request holds and counts it, exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from itertools import count

from gateway.config import Settings
from gateway.fleet.backend import Backend
from gateway.fleet.fleet import Fleet, UnknownBackend
from gateway.fleet.upstream import FailureKind, Upstream, UpstreamFailure
from gateway.http.body import read_body
from gateway.http.client import EXTENSION, AsgiClient, ClientGone, Receive, Scope, Send
from gateway.http.context import RequestContext
from gateway.http.dialects.base import Dialect
from gateway.http.dialects.registry import dialect_for
from gateway.http.errors import (
    InternalFailure,
    Overloaded,
    RequestError,
    UnknownModel,
    UpstreamBroke,
)
from gateway.http.headers import Headers, RequestHeaders, read_request
from gateway.http.relay import Relay
from gateway.prefix.blocks import KEY_BYTES_PER_TOKEN, BlockScale
from gateway.prefix.generations import Generations
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.classify import classify
from gateway.scheduling.lease import Lease
from gateway.scheduling.pool import NO_BACKEND_RETRY_AFTER, Pool
from gateway.scheduling.pools import ANY_MODEL, Pools
from gateway.scheduling.ticket import RefusalReason, Refused, Ticket
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import RequestRecord
from gateway.types import NO_MATCH, Clock, Outcome, Prompt
from policies.base import RouteRequest

logger = logging.getLogger("prefixgate.proxy")

TYPICAL_OUTPUT = 300
"""Output tokens expected of a request that says nothing about it."""
_BODILESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})


class Proxy:
    """Args:
    upstreams: by backend id; the composition root keeps it in step with the fleet.
    observe: takes the record of each request once it has ended.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        fleet: Fleet,
        upstreams: Mapping[str, Upstream],
        pools: Pools,
        index: PrefixIndex,
        scale: BlockScale,
        generations: Generations,
        metrics: Metrics,
        observe: Callable[[RequestRecord], None],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._upstreams = upstreams
        self._pools = pools
        self._index = index
        self._scale = scale
        self._generations = generations
        self._metrics = metrics
        self._observe = observe
        self._clock = clock
        self._threshold = settings.scheduling.prefill_threshold
        self._headers_on = settings.server.response_headers
        # Engines use the id to tell requests apart: unique across replicas and restarts.
        self._id_prefix = os.urandom(6).hex()
        self._ids = count(1)
        self.live: dict[str, RequestContext] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        extensions = scope.get("extensions")
        client = extensions.get(EXTENSION) if extensions else None
        if client is None:
            client = AsgiClient(receive, send)
        dialect = dialect_for(scope["method"], scope["path"])
        record = RequestRecord(
            id=f"{self._id_prefix}-{next(self._ids):x}",
            dialect=dialect.name,
            arrived=self._clock(),
            arrived_unix=time.time(),
        )
        context = RequestContext(scope, client, dialect, record)
        self.live[record.id] = context
        try:
            await self._serve(context, receive)
        except RequestError as error:
            self._refuse(context, error)
        except ClientGone:
            record.outcome = Outcome.CANCELLED
        except Exception:
            logger.exception("request %s failed inside the gateway", record.id)
            record.outcome = Outcome.INTERNAL_ERROR
            self._refuse(context, InternalFailure("The gateway failed on this request."))
        finally:
            self._close(context)
        if type(client) is AsgiClient:
            await client.drained()

    async def _serve(self, context: RequestContext, receive: Receive) -> None:
        record = context.record
        headers = context.headers = read_request(context.scope["headers"])
        body = context.body = await read_body(
            context.client, context.scope["headers"], receive, self._settings.server
        )
        context.client.watch()
        prompt, request = self.understand(context.dialect, headers, body)
        context.request = request
        record.model = prompt.model
        record.stream = prompt.stream
        record.keyed = bool(request.chain)
        lease = await self._admit(context, self.pool(prompt.model), request)
        await self._dispatch(context, lease)

    def understand(
        self, dialect: Dialect, headers: RequestHeaders, body: bytes
    ) -> tuple[Prompt, RouteRequest]:
        """What a request asks for, and the facts that class, limits and policy look at.

        Raises:
            RequestError: it cannot be read.
        """
        prompt = dialect.parse(body, headers.content_type.decode("latin-1"))
        chain, match = b"", NO_MATCH
        if prompt.key:
            namespace = self._generations.namespace(prompt.model, prompt.namespace)
            chain = self._scale.chain(namespace, prompt.key)
            match = self._index.match(chain)
        prompt_tokens = prompt.prompt_bytes // KEY_BYTES_PER_TOKEN
        cached = max(match.tokens.values()) if match.tokens else 0.0
        output = 0
        if prompt.generates:
            cap = prompt.max_output_tokens
            output = TYPICAL_OUTPUT if cap is None or cap > TYPICAL_OUTPUT else cap
        return prompt, RouteRequest(
            prompt.model,
            chain,
            prompt_tokens,
            output,
            match,
            headers.session.decode("latin-1") or None,
            classify(prompt_tokens - cached, self._threshold),
            self._clock(),
        )

    def pool(self, model: str) -> Pool:
        """The pool that serves a model.

        Raises:
            RequestError: there is none, now or at all.
        """
        pool = self._pools.get(model)
        if pool is not None:
            return pool
        if not self._fleet.knows_models():
            raise _no_backend("No backend is ready yet.")
        if self._fleet.knows(model) or model == ANY_MODEL:
            raise _no_backend(_REFUSALS[RefusalReason.NO_BACKEND])
        raise UnknownModel(model)

    # admission

    async def _admit(self, context: RequestContext, pool: Pool, request: RouteRequest) -> Lease:
        context.phase = "queue"
        record = context.record
        record.prompt_tokens = request.prompt_tokens
        record.work_class = request.work_class
        ticket = Ticket(request, context.granted, context.refused, self._index.match)
        try:
            lease = pool.submit(ticket)
            if lease is None:
                lease = await self._wait(context, pool, ticket)
        except Refused as refused:
            record.refusal = refused.reason.value
            raise _overloaded(refused) from None
        context.lease = lease
        decision = lease.decision
        record.backend = decision.backend
        record.reason = decision.reason
        record.matched_tokens = ticket.request.match.tokens.get(decision.backend, 0.0)
        record.uncached_tokens = lease.uncached_tokens
        record.queue_seconds = lease.queue_seconds
        return lease

    async def _wait(self, context: RequestContext, pool: Pool, ticket: Ticket) -> Lease:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Lease] = loop.create_future()
        context.waiting = waiting

        def leave() -> None:
            if not waiting.done():
                waiting.set_exception(ClientGone())

        context.client.on_gone = leave
        if context.client.gone:
            leave()
        try:
            return await waiting
        finally:
            pool.cancel(ticket)
            context.waiting = None

    # dispatch

    async def _dispatch(self, context: RequestContext, lease: Lease) -> None:
        context.phase = "connect"
        try:
            backend = self._fleet.get(lease.backend_id)
        except UnknownBackend:  # removed between the grant and now
            raise _no_backend("The chosen backend was removed.") from None
        upstream = self._upstreams[backend.id]
        request = context.request
        if request is not None and request.chain:
            context.booking = self._index.book(backend.id, request.chain)
        headers = context.headers
        assert headers is not None

        def accepted() -> None:
            if context.booking is not None:
                self._index.confirm(context.booking)
            relay = context.relay
            if relay is not None and relay.scanner is not None:
                lease.first_token()

        relay = context.relay = Relay(
            context.client,
            context.dialect,
            self._clock,
            self._added_headers(context),
            headers.accept_encoding,
            accepted,
        )
        context.client.on_gone = relay.cancel
        if context.client.gone:
            relay.cancel()
        head = self._request_head(context, backend)
        head_only = context.scope["method"] == "HEAD"
        connection = upstream.idle()
        try:
            while True:
                if connection is None:
                    connection = await upstream.dial()
                if relay.cancelled:
                    upstream.park(connection)
                    raise ClientGone
                context.phase = "answer"
                relay.carry(connection)
                connection.send(head, context.body, relay, head_only=head_only)
                try:
                    await relay.done
                    break
                except UpstreamFailure as failure:
                    # The backend closed an idle connection just as it was taken: nothing of the
                    # request was seen, so sending it once more on a new one is safe.
                    if failure.kind is not FailureKind.RESET or not connection.reused:
                        raise
                    self._metrics.redials += 1
                    connection = None
        except UpstreamFailure as failure:
            self._metrics.upstream_error(backend.id, failure.kind.value)
            gone = failure.kind is FailureKind.CONNECT
            self._fleet.report_failure(backend.id, str(failure), gone=gone)
            raise UpstreamBroke(failure) from None
        if relay.failure is not None:
            self._metrics.upstream_error(backend.id, relay.failure.kind.value)
            self._fleet.report_failure(backend.id, str(relay.failure))
        elif relay.status:
            if relay.status >= 500 and relay.status not in (501, 503):
                self._fleet.report_failure(backend.id, f"status {relay.status}")
            else:
                self._fleet.report_success(backend.id)

    def _request_head(self, context: RequestContext, backend: Backend) -> bytes:
        scope = context.scope
        headers = context.headers
        assert headers is not None
        query = scope["query_string"]
        target = backend.address.base_path.encode() + scope["raw_path"]
        if query:
            target += b"?" + query
        body = context.body
        framing = b"content-length: %d\r\n" % len(body)
        if not body and scope["method"] in _BODILESS:
            framing = b""
        return b"%b %b HTTP/1.1\r\nhost: %b\r\n%bx-request-id: %b\r\n%b\r\n" % (
            scope["method"].encode(),
            target,
            backend.address.authority.encode(),
            headers.forward,
            context.record.id.encode(),
            framing,
        )

    def _added_headers(self, context: RequestContext) -> Headers:
        headers = context.headers
        added = [
            (
                b"x-request-id",
                (headers.request_id if headers else b"") or context.record.id.encode(),
            )
        ]
        record = context.record
        if self._headers_on and context.lease is not None:
            added += (
                (b"x-prefixgate-backend", record.backend.encode()),
                (b"x-prefixgate-decision", record.reason.encode() if record.reason else b""),
                (b"x-prefixgate-matched-tokens", b"%d" % record.matched_tokens),
                (b"x-prefixgate-queue-ms", b"%d" % (record.queue_seconds * 1000)),
            )
        return added

    def assume_prefilled(self, now: float) -> None:
        """Take the prefills of answers that are no streams to be done when they should be.

        Their first token cannot be seen; without this their whole decode would count as pending
        prefill.
        """
        for context in tuple(self.live.values()):
            lease = context.lease
            if lease is not None and not context.record.stream and now >= lease.prefill_due:
                lease.first_token()

    # ends

    def _refuse(self, context: RequestContext, error: RequestError) -> None:
        record = context.record
        record.outcome = error.outcome
        record.status = error.status
        client = context.client
        if client.gone:
            record.outcome = Outcome.CANCELLED
            return
        if client.started:
            client.abort()
            return
        body = context.dialect.error(
            error.status, str(error), type=error.type, code=error.code, param=error.param
        )
        headers = [(b"content-type", b"application/json"), *self._added_headers(context)]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        if error.close:
            client.close_after()
        client.start(error.status, headers, len(body))
        client.write(body)
        client.end()

    def _close(self, context: RequestContext) -> None:
        context.client.on_gone = None
        record = context.record
        del self.live[record.id]
        relay, context.relay = context.relay, None  # the relay's callback refers to the context
        now = self._clock()
        if context.booking is not None:
            # After a confirmation this does nothing.
            self._index.withdraw(context.booking)
        if context.lease is not None:
            context.lease.release()
        record.duration = now - record.arrived
        if relay is not None:
            _note_answer(relay, record)
        if record.outcome is Outcome.CANCELLED:
            record.disconnect_phase = context.phase
        self._observe(record)


def _no_backend(message: str) -> Overloaded:
    return Overloaded(
        message,
        status=503,
        code=RefusalReason.NO_BACKEND.value,
        retry_after=math.ceil(NO_BACKEND_RETRY_AFTER),
    )


def _overloaded(refused: Refused) -> RequestError:
    reason = refused.reason
    if reason is RefusalReason.ROUTING_FAILED:
        return InternalFailure("The routing policy failed on this request.")
    return Overloaded(
        _REFUSALS[reason],
        status=refused.status,
        code=reason.value,
        retry_after=math.ceil(refused.retry_after),
    )


_REFUSALS = {
    RefusalReason.QUEUE_FULL: "Too many requests are waiting.",
    RefusalReason.EXPIRED: "The request waited as long as it may without a backend coming free.",
    RefusalReason.NO_BACKEND: "No backend that serves this model is available.",
    RefusalReason.SHUTTING_DOWN: "The gateway is shutting down.",
}


def _note_answer(relay: Relay, record: RequestRecord) -> None:
    """Write down how the answer went."""
    scanner = relay.scanner
    usage = relay.usage
    if relay.status:
        record.status = relay.status
    if scanner is not None:
        record.output_tokens = scanner.tokens
        usage = scanner.usage
        if relay.first_at is not None:
            record.ttft = relay.first_at - record.arrived
            if relay.ended_at is not None and scanner.tokens > 1:
                record.tpot = (relay.ended_at - relay.first_at) / (scanner.tokens - 1)
    if usage is not None:
        record.reported_prompt_tokens = usage.prompt_tokens
        record.reported_cached_tokens = usage.cached_tokens
        if usage.output_tokens is not None:
            record.output_tokens = usage.output_tokens
    if record.outcome is None:
        record.outcome = _outcome(relay)


def _outcome(relay: Relay) -> Outcome:
    if relay.cancelled:
        return Outcome.CANCELLED
    if relay.failure is not None:
        return Outcome.TIMEOUT if relay.failure.kind.is_timeout else Outcome.UPSTREAM_ERROR
    if relay.scanner is not None and relay.scanner.error is not None:
        return Outcome.UPSTREAM_ERROR
    status = relay.status
    if status in (429, 503):
        return Outcome.BACKPRESSURE
    if status >= 500:
        return Outcome.UPSTREAM_ERROR
    return Outcome.CLIENT_ERROR if status >= 400 else Outcome.OK
