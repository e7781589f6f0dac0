"""The proxied path: one ASGI application that takes a request through all stations.

    ingress ─► dialect ─► prefix key ─► index.match ─► classify ─► admission ─► dispatch ─► observe

There is one way through and no way back; every exit, whatever the reason, goes through `_close`,
which gives back what the request holds and counts it, exactly once.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count

from gateway.config import Settings
from gateway.fleet.fleet import Fleet
from gateway.fleet.upstream import TICK
from gateway.http.admission import Admission, no_backend, shutting_down
from gateway.http.attempts import Attempts
from gateway.http.body import Bodies
from gateway.http.client import EXTENSION, AsgiClient, ClientGone, Receive, Scope, Send
from gateway.http.context import RequestContext
from gateway.http.dialects.base import EVENT_STREAM, Dialect
from gateway.http.dialects.registry import dialect_for, takes
from gateway.http.dispatch import Dispatcher
from gateway.http.errors import (
    InternalFailure,
    LostResponse,
    RequestError,
    UnknownModel,
    UnknownResponse,
    WrongMethod,
)
from gateway.http.facts import FactReader, Facts
from gateway.http.headers import RequestHeaders
from gateway.http.identity import Identity
from gateway.http.ingress import Ingress
from gateway.http.learning import Learning
from gateway.http.outcome import note_answer, note_handover, tokens_of_work
from gateway.http.owners import Owners, named_in
from gateway.http.relay import COMMENT, open_stream
from gateway.http.via import Via
from gateway.scheduling.pool import Pool
from gateway.scheduling.pools import ANY_MODEL, Pools
from gateway.telemetry.record import RequestRecord
from gateway.types import Clock, Outcome

LARGE = 256 * 1024
"""Bytes of a body from which on reading it would hold up others: a millisecond, about."""

logger = logging.getLogger("prefixgate.proxy")


class Proxy:
    """Args:
    settings: as they are now.
    observe: takes the record of each request once it has ended.
    instance: names the process, or all workers of one, to whoever meets its requests again.

    Attributes:
        live: requests under way, by id.
    """

    def __init__(
        self,
        *,
        settings: Callable[[], Settings],
        ingress: Ingress,
        fleet: Fleet,
        pools: Pools,
        facts: FactReader,
        learning: Learning,
        bodies: Bodies,
        owners: Owners,
        admission: Admission,
        attempts: Attempts,
        dispatcher: Dispatcher,
        observe: Callable[[RequestRecord], None],
        clock: Clock,
        instance: str,
    ) -> None:
        self._settings = settings
        self._ingress = ingress
        self._fleet = fleet
        self._pools = pools
        self._facts = facts
        self._learning = learning
        self._bodies = bodies
        self._owners = owners
        self._admission = admission
        self._attempts = attempts
        self._dispatcher = dispatcher
        self._observe = observe
        self._clock = clock
        # Engines use the id to tell requests apart: unique across replicas and restarts.
        self._id_prefix = os.urandom(6).hex()
        self._ids = count(1)
        self._via = Via(f"prefixgate-{instance}".encode())
        # One: more of them would only take the interpreter from the event loop more often.
        self._aside = ThreadPoolExecutor(1, "prefixgate-body")
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
            id=self.next_id(),
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
            self._cut_short(context)
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
        scope = context.scope
        headers, identity = self._ingress.admit(scope)
        context.headers, context.identity = headers, identity
        record.client_id = headers.request_id.decode("latin-1")
        if identity is not None:
            record.key = identity.key.name
            identity.reservation = identity.key.use.enter(self._clock())
        self._ingress.check_path(scope["method"], scope["path"])
        headers.forward += self._via.line(headers.via)
        body = context.body = await self._bodies.read(context, receive)
        context.client.watch()
        if not takes(scope["method"], scope["path"]):
            raise WrongMethod(scope["method"], scope["path"])
        if len(body) < LARGE:
            facts = context.facts = self._facts.read(context.dialect, headers, body, identity)
        else:
            facts = context.facts = await self._read_aside(context, headers, body)
        del body  # it is let go of once a backend has taken it
        prompt, request = facts.prompt, facts.request
        record.model = prompt.model
        record.stream = prompt.stream
        record.max_tokens = prompt.max_output_tokens
        record.prompt_bytes = prompt.prompt_bytes
        record.keyed = bool(request.chain)
        record.tenant = request.tenant
        record.session = request.session or ""
        if self._settings().log.chains:
            record.chain = request.chain
        if prompt.transfer:
            self._ingress.check_prompt(prompt)
        if identity is not None and not identity.key.allows(prompt.model):
            # As one that does not exist: what is served to others is not told.
            raise UnknownModel(prompt.model)
        if identity is not None and prompt.adapters:
            for adapter in prompt.adapters:
                if not identity.key.allows_adapter(prompt.model, adapter):
                    raise UnknownModel(adapter)
        pool = self.pool(prompt.model)
        if context.dialect.stores:
            named = prompt.continues or named_in(scope["path"])
            sought = self._owners.seek(named) if named else None
            if sought is not None:
                await sought
            context.owner = self.owner(scope["path"], prompt.continues, pool, identity)
        request = context.request = self._facts.appraise(facts, pool, identity)
        record.prompt_tokens = request.prompt_tokens
        record.work_class = request.work_class
        record.priority = request.priority
        if identity is not None:
            assert identity.reservation is not None
            tokens = request.prompt_tokens + request.output_tokens
            asked = identity.reservation.reserve(tokens, self._clock())
            if asked is not None:
                await asked
                if context.client.gone:
                    raise ClientGone
        await self._attempts.run(context, pool)

    async def _read_aside(
        self, context: RequestContext, headers: RequestHeaders, body: bytes
    ) -> Facts:
        """The facts of a large body, while others are served."""
        read = asyncio.get_running_loop().run_in_executor(
            self._aside, self._facts.key, context.dialect, headers, body
        )
        keyed = await read
        if context.client.gone:
            raise ClientGone
        return self._facts.place(context.dialect, headers, keyed, context.identity)

    def next_id(self) -> str:
        """An id that no other request has."""
        return f"{self._id_prefix}-{next(self._ids):x}"

    def pool(self, model: str) -> Pool:
        """The pool that serves a model.

        Raises:
            RequestError: there is none, now or at all.
        """
        pool = self._pools.get(model)
        if pool is not None:
            return pool
        if not self._fleet.knows_models():
            why = "; ".join(self._fleet.why_unready())
            raise no_backend(f"No backend is ready yet{f' ({why})' if why else ''}.")
        if self._fleet.knows(model) or model == ANY_MODEL:
            raise no_backend()
        raise UnknownModel(model)

    def owner(self, path: str, continues: str, pool: Pool, identity: Identity | None) -> str | None:
        """The backend that a request must go to for the stored response that it names, None where
        it names none, or one that nothing is known of.

        Args:
            continues: id of the response that the body goes on from, "" without one.
            identity: whose it is, where API keys say so.

        Raises:
            RequestError: it cannot go there, now or at all.
        """
        id = continues or named_in(path)
        known = self._owners.find(id) if id else None
        param = "previous_response_id" if continues else None
        if known is not None and identity is not None and known.tenant not in ("", identity.tenant):
            raise UnknownResponse(param)
        owner = None if known is None else known.backend
        # One that is busy is avoided, and only until the mark goes: the request waits for it.
        if owner is None or any(load.id == owner for load in pool.members):
            return owner
        if any(backend.id == owner for backend in self._fleet):
            raise no_backend("The backend that keeps this response is not available.")
        raise LostResponse(param)

    # on the clock

    def ping_silent(self) -> None:
        """Send comments into the streams that are silent; called every `TICK` seconds."""
        limit = self._settings().server.stream_ping
        if limit is None:
            return
        for context in tuple(self.live.values()):
            if not context.record.stream or not _takes_comments(context.dialect):
                continue
            if context.waiting is not None or context.phase == "prefill":
                self._ping_waiting(context, limit)
            elif context.relay is not None:
                context.relay.ping(limit)

    def _ping_waiting(self, context: RequestContext, limit: float) -> None:
        """Called every `TICK` seconds of one that waits for its turn, or for its prefill leg."""
        context.quiet += TICK
        if context.quiet < limit or context.client.gone:
            return
        context.quiet = 0.0
        if context.opened:
            context.client.write(COMMENT)
        else:
            context.opened = True
            if context.relay is not None:  # of an attempt that failed
                context.relay.opened = True
            open_stream(context.client, self._dispatcher.added_headers(context))

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

    def _cut_short(self, context: RequestContext) -> None:
        """End what cannot wait for its own end, so that it cannot look complete."""
        error, relay = shutting_down(), context.relay
        if relay is not None:
            relay.cut_short(error)
            if relay.scanner is not None and relay.scanner.done:
                return
            if relay.started:
                context.record.outcome = error.outcome
                return
        self._refuse(context, error)

    def _refuse(self, context: RequestContext, error: RequestError) -> None:
        record = context.record
        record.outcome = error.outcome
        record.status = error.status
        client = context.client
        if client.gone:
            record.outcome = Outcome.CANCELLED
            return
        if client.started:
            relay = context.relay
            if context.opened if relay is None else relay.opened:
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
        headers = [
            (b"content-type", b"application/json"),
            *error.headers,
            *self._dispatcher.added_headers(context),
        ]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % error.retry_after))
        if error.close:
            client.close_after()
        client.start(error.status, headers, len(body), body)
        client.end()

    def _close(self, context: RequestContext) -> None:
        context.client.on_gone = None
        record = context.record
        del self.live[record.id]
        record.duration = self._clock() - record.arrived
        try:
            if context.relay is not None:
                note_answer(context.relay, record)
                if context.handover is not None:
                    note_handover(context, context.handover)
                self._learning.answered(context)
        finally:
            identity = context.identity
            if identity is not None and identity.reservation is not None:
                identity.reservation.settle(tokens_of_work(context), self._clock())
            self._admission.give_back(context)
            self._bodies.let_go(context)
            context.relay = None  # its callback refers to the context
        if record.outcome is Outcome.CANCELLED:
            record.disconnect_phase = context.phase
        self._observe(record)


def _takes_comments(dialect: Dialect) -> bool:
    return dialect.ends_with_marker and dialect.stream_type == EVENT_STREAM
