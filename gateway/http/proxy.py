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
from collections.abc import Callable, Container
from itertools import count

from msgspec import structs

from gateway.config import Settings
from gateway.fleet.fleet import Fleet, UnknownBackend
from gateway.http.body import read_body
from gateway.http.client import EXTENSION, AsgiClient, ClientGone, Receive, Scope, Send
from gateway.http.context import RequestContext
from gateway.http.dialects.base import Dialect
from gateway.http.dialects.registry import dialect_for
from gateway.http.dispatch import Dispatcher
from gateway.http.errors import (
    InternalFailure,
    Overloaded,
    RequestError,
    UnknownModel,
    UpstreamBroke,
)
from gateway.http.headers import RequestHeaders, read_request
from gateway.http.outcome import note_answer
from gateway.http.retry import RetryBudget, is_unserved
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


class Proxy:
    """Args:
    observe: takes the record of each request once it has ended.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        fleet: Fleet,
        dispatcher: Dispatcher,
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
        self._dispatcher = dispatcher
        self._pools = pools
        self._index = index
        self._scale = scale
        self._generations = generations
        self._metrics = metrics
        self._observe = observe
        self._clock = clock
        self._threshold = settings.scheduling.prefill_threshold
        self._max_retries = settings.retries.max_retries
        self._budget = RetryBudget(settings.retries.budget)
        # Engines use the id to tell requests apart: unique across replicas and restarts.
        self._id_prefix = os.urandom(6).hex()
        self._ids = count(1)
        self.live: dict[str, RequestContext] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Out of the scope: the client refers back to it, and a cycle would keep every body alive
        # until a full collection.
        extensions = scope.pop("extensions", None)
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
        except asyncio.CancelledError:
            # The server waits no longer for what is under way.
            record.outcome = Outcome.REJECTED
            if context.relay is not None:
                context.relay.cancel()
            raise
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
        await self._route(context, self.pool(prompt.model), request)

    async def _route(self, context: RequestContext, pool: Pool, request: RouteRequest) -> None:
        """Try backends until one has answered; each at most once, and only with room for it."""
        self._budget.earn()
        tried: dict[str, int] = {}
        lease = await self._admit(context, pool, request)
        while True:
            backend = lease.backend_id
            tried[backend] = 0
            may_retry = len(tried) <= self._max_retries and _has_other(pool, request, tried)
            repeatable = may_retry and context.dialect.ends_with_marker
            try:
                failure = await self._dispatcher.send(context, lease, may_retry=repeatable)
            except UnknownBackend:
                raise _no_backend("The chosen backend was removed.") from None
            relay = context.relay
            assert relay is not None
            context.opened = relay.opened
            if failure is None and not relay.refused:
                if 0 < relay.status < 500:
                    self._blame(tried)
                return
            tried[backend] = relay.status
            unserved = failure is None or is_unserved(failure, relay.status, repeatable)
            if may_retry and unserved and not context.client.gone and self._budget.spend():
                again = self._again(context, pool, request, tuple(tried))
                if again is not None:
                    lease = again
                    continue
            if failure is not None:
                raise UpstreamBroke(failure)
            relay.pass_on()
            return

    def _again(
        self, context: RequestContext, pool: Pool, request: RouteRequest, tried: tuple[str, ...]
    ) -> Lease | None:
        """A lease at another backend, if one can be had at once; the old one is then given back.

        Waiting for it could take longer than the client's own retry, and would hold up others.
        """
        match = self._index.match(request.chain) if request.chain else NO_MATCH
        request = structs.replace(request, match=match, now=self._clock())
        ticket = Ticket(request, context.granted, context.refused, max_wait=0.0, avoid=tried)
        try:
            lease = pool.submit(ticket)
        except Refused:
            return None
        assert lease is not None
        self._give_back(context)
        self._metrics.retries += 1
        context.request = request
        self._note_lease(context, lease, ticket)
        return lease

    def _blame(self, tried: dict[str, int]) -> None:
        """Another backend has served the request, so those that answered 5xx were at fault.

        Where all fail alike it may well be the request, which must not put out the whole fleet.
        """
        for backend, status in tried.items():
            if status >= 500 and status not in (501, 503):
                self._fleet.report_failure(backend, f"status {status}")

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
        self._note_lease(context, lease, ticket)
        return lease

    def _note_lease(self, context: RequestContext, lease: Lease, ticket: Ticket) -> None:
        context.lease = lease
        record, decision = context.record, lease.decision
        record.backend = decision.backend
        record.reason = decision.reason
        record.matched_tokens = ticket.request.match.tokens.get(decision.backend, 0.0)
        record.uncached_tokens = lease.uncached_tokens
        record.queue_seconds = lease.queue_seconds

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

    # on the clock

    def ping_silent(self) -> None:
        """Send comments into the streams that are silent; called every `TICK` seconds."""
        limit = self._settings.server.stream_ping
        if limit is None:
            return
        for context in tuple(self.live.values()):
            relay = context.relay
            if relay is not None and context.record.stream and context.dialect.ends_with_marker:
                relay.ping(limit)

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
            if context.opened:
                client.write(
                    context.dialect.error_event(
                        error.status, str(error), type=error.type, code=error.code
                    )
                )
                client.end()
            else:
                client.abort()
            return
        body = context.dialect.error(
            error.status, str(error), type=error.type, code=error.code, param=error.param
        )
        headers = [(b"content-type", b"application/json"), *self._dispatcher.added_headers(context)]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        if error.close:
            client.close_after()
        client.start(error.status, headers, len(body), body)
        client.end()

    def _give_back(self, context: RequestContext) -> None:
        if context.booking is not None:
            # After a confirmation this does nothing.
            self._index.withdraw(context.booking)
            context.booking = None
        if context.lease is not None:
            context.lease.release()
            context.lease = None

    def _close(self, context: RequestContext) -> None:
        context.client.on_gone = None
        record = context.record
        del self.live[record.id]
        relay, context.relay = context.relay, None  # the relay's callback refers to the context
        now = self._clock()
        self._give_back(context)
        record.duration = now - record.arrived
        if relay is not None:
            note_answer(relay, record)
        if record.outcome is Outcome.CANCELLED:
            record.disconnect_phase = context.phase
        self._observe(record)


def _has_other(pool: Pool, request: RouteRequest, tried: Container[str]) -> bool:
    """Whether a backend that was not tried has room for the request now."""
    return any(load.id not in tried for load in pool.candidates(request))


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
