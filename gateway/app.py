"""The composition root: builds every part from the settings, owns their start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from gateway.admin.api import admin_app
from gateway.admin.listener import AdminListener
from gateway.config import ConfigError, Settings
from gateway.control import GatewayControl
from gateway.disagg.bootstrap import Bootstraps
from gateway.disaggregation import Disaggregation
from gateway.fleet.access import Accesses
from gateway.fleet.aliases import Aliases
from gateway.fleet.allow import AllowRule
from gateway.fleet.backend import Source
from gateway.fleet.discovery.feeds import Feeds
from gateway.fleet.fleet import Fleet
from gateway.fleet.health import Prober
from gateway.fleet.polling import LoadPoller
from gateway.fleet.reconciler import Reconciler
from gateway.fleet.upstream import TICK, Upstream
from gateway.following import Following
from gateway.http.admission import Admission
from gateway.http.attempts import Attempts
from gateway.http.body import Bodies
from gateway.http.client import Receive, Scope, Send
from gateway.http.closing import closing
from gateway.http.decisions import DecisionLog, explained
from gateway.http.dispatch import Dispatcher
from gateway.http.errors import RequestError
from gateway.http.facts import FactReader
from gateway.http.ingress import Ingress
from gateway.http.keyguard import KeyGuard
from gateway.http.keys import Keys
from gateway.http.learning import Learning
from gateway.http.ops import Ops, identified, is_control_path, refusal
from gateway.http.owners import LocalOwners
from gateway.http.proxy import Proxy
from gateway.http.shared_owners import SharedOwners
from gateway.http.verdicts import Verdicts
from gateway.overrides import Overrides
from gateway.prefix.blocks import BlockScale
from gateway.prefix.generations import Generations
from gateway.prefix.index import PrefixIndex
from gateway.readings import sources_of
from gateway.reload import Reloader
from gateway.replication import Replication
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pools import Pools
from gateway.scheduling.reported import Reports
from gateway.telemetry.access import AccessLog
from gateway.telemetry.collector import MetricsPage
from gateway.telemetry.lines import LineLog
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import RequestRecord
from gateway.tls import ServerCertificate
from gateway.types import Clock
from policies.base import Policy
from policies.registry import build

if TYPE_CHECKING:
    from gateway.workers.siblings import Siblings

L = TypeVar("L", bound=LineLog[Any])

logger = logging.getLogger("prefixgate")

EXPIRY_TICK = 0.05
"""How often overdue tickets are looked for, in seconds."""

RECLAIMED = 500
"""Records of removed and restarted backends that one housekeeping round clears away."""


class Gateway:
    """One gateway process without its listening socket: an ASGI application.

    Making one touches nothing outside it, so that settings can be tried by making one with them.

    Args:
        clock: seconds, monotonic.
        instance: names the process on its own pages, or with workers all of them; made up when
            not given.
        workers: processes that the gateway has, this one included.

    Attributes:
        settings: those that hold now.
        stopping: a signal to stop has come.
        reloader: loads the settings anew; None where they come from no file.
        siblings: the other workers; None for a gateway that is one process.

    Raises:
        ConfigError: the policy, its parameters or a backend's address is wrong.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock = time.monotonic,
        instance: str | None = None,
        workers: int = 1,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.stopping = False
        self.reloader: Reloader | None = None
        self.siblings: Siblings | None = None
        self.instance = instance or os.urandom(8).hex()
        self.scale = BlockScale()
        self.generations = Generations()
        self.index = PrefixIndex(self.scale, settings.index.max_blocks)
        self.allow_rule = AllowRule(settings.admin.allow_backends)
        accesses = Accesses(settings.backend_tls, self.allow_rule)
        self.fleet = Fleet(
            settings.health, clock, settings.breaker, settings.backpressure, accesses
        )
        self.fleet.aliases = Aliases(settings.models)
        self.reconciler = Reconciler(self.fleet, clock, settings.discovery.linger)
        self.feeds = Feeds(settings.discovery, self.reconciler, clock)
        self.replication: Replication | None = None
        self.owners: LocalOwners | SharedOwners
        if settings.redis.url is None:
            self.keys = Keys(settings.auth)
            self.owners = LocalOwners(settings.stored, clock)
        else:
            self.replication = Replication(settings, clock, workers)
            self.keys = Keys(settings.auth, self.replication.quotas.new_use)
            self.owners = self.replication.owners
        self.overrides = Overrides(self)
        tls = settings.server.tls
        self.certificate = None if tls is None else ServerCertificate(tls)
        self.access = _log(AccessLog, "access", settings.log.access)
        self.decisions = _log(
            lambda path: DecisionLog(path, clock), "decisions", settings.log.decisions
        )
        self._policy = build(settings.policy.name, settings.policy.params)
        self.pools = Pools(self._policy, settings.scheduling, clock)
        self.upstreams: dict[str, Upstream] = {}
        self.loads: dict[str, BackendLoad] = {}
        self.learning = Learning(index=self.index, loads=self.loads, clock=clock)
        self.metrics = Metrics(self.fleet.knows)
        self.page = MetricsPage(self.metrics, sources_of(self))
        self.facts = FactReader(
            fleet=self.fleet,
            index=self.index,
            scale=self.scale,
            generations=self.generations,
            tokens=self.learning.tokens,
            outputs=self.learning.outputs,
            clock=clock,
        )
        verdicts = Verdicts(self.fleet, self.metrics)
        self.bodies = Bodies(settings.server)
        self.dispatcher = Dispatcher(
            fleet=self.fleet,
            upstreams=self.upstreams,
            index=self.index,
            learning=self.learning,
            verdicts=verdicts,
            bodies=self.bodies,
            owners=self.owners,
            metrics=self.metrics,
            clock=clock,
            response_headers=settings.server.response_headers,
        )
        admission = Admission(
            index=self.index,
            facts=self.facts,
            learning=self.learning,
            clock=clock,
            decided=None if self.decisions is None else self.decisions.note,
        )
        self.disagg = Disaggregation(
            settings=settings,
            fleet=self.fleet,
            pools=self.pools,
            upstreams=self.upstreams,
            loads=self.loads,
            index=self.index,
            learning=self.learning,
            dispatcher=self.dispatcher,
            verdicts=verdicts,
            metrics=self.metrics,
            clock=clock,
        )
        self.apply_policy()
        self.attempts = Attempts(
            admission=admission,
            joint=self.disagg.routing,
            handovers=self.disagg.handovers,
            verdicts=verdicts,
            metrics=self.metrics,
            retries=settings.retries,
            timeouts=settings.timeouts,
        )
        self.ingress = Ingress(settings, self.keys, lambda: self.pools.scheduling)
        self.proxy = Proxy(
            settings=lambda: self.settings,
            ingress=self.ingress,
            fleet=self.fleet,
            pools=self.pools,
            facts=self.facts,
            learning=self.learning,
            bodies=self.bodies,
            owners=self.owners,
            admission=admission,
            attempts=self.attempts,
            dispatcher=self.dispatcher,
            observe=self._observe,
            clock=clock,
            instance=self.instance,
        )
        bootstraps = Bootstraps(
            self.disagg.pairs,
            lambda: self.settings.health.timeout,
            lambda: self.following.restate(),
        )
        self.prober = Prober(
            self.fleet, settings.health, instance=self.instance, also=bootstraps.ask
        )
        self._ticker: asyncio.Task[None] | None = None
        self._admin_listener: AdminListener | None = None
        self._starlette = self._control_plane()
        self.following = Following(self)
        self.fleet.on_change(self.following.changed)
        self.fleet.on_restart(self.following.restarted)
        # After the pools: to stop counting strangers makes room, which is for nobody at a backend
        # that is out.
        reports = Reports(self.loads, clock, self.metrics.load_failed)
        self.poller = LoadPoller(self.fleet, settings.health, reports, clock)
        if self.replication is not None:
            self.replication.join(self)
        self.reconciler.offer(Source.CONFIG, settings.backends)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.stopping:
            send = closing(scope, send)
        if scope["type"] == "http" and not is_control_path(scope["path"]):
            await self.proxy(scope, receive, send)
        elif scope["type"] == "http":
            await self._starlette(scope, receive, identified(scope, self.proxy.next_id(), send))
        else:
            await self._starlette(scope, receive, send)

    def set_policy(self, policy: Policy) -> None:
        """Route by a policy from the next request on."""
        self._policy = policy
        self.apply_policy()

    def apply_policy(self) -> None:
        """Route by the policy, or by what stands in for it where there are prefill engines; where
        decisions are recorded, it explains them."""
        policy = self.disagg.policy_over(self._policy)
        if self.decisions is not None:
            policy = explained(policy, lambda: self.pools.scheduling.gate)
        self.pools.policy = policy

    @property
    def logs(self) -> list[LineLog[Any]]:
        """Those that are kept."""
        return [log for log in (self.access, self.decisions) if log is not None]

    def open_logs(self) -> None:
        """Raises:
        ConfigError: a file cannot be written.
        """
        for option, log in (("access", self.access), ("decisions", self.decisions)):
            if log is not None:
                try:
                    log.open()
                except OSError as error:
                    raise _unwritable(option, log.path, error) from None

    def listen_for_admins(self, sockets: list[socket.socket] | None = None) -> list[socket.socket]:
        """Take the address of the admin API, where it has one of its own.

        Args:
            sockets: that listen there already.

        Returns:
            The sockets that listen there.

        Raises:
            CannotListen: it is in use, or not ours.
        """
        return [] if self._admin_listener is None else self._admin_listener.listen(sockets)

    async def scrape(self) -> bytes:
        """The metrics page; of all workers where there are several.

        Raises:
            ConnectionError: they cannot be asked.
        """
        if self.siblings is not None:
            return await self.siblings.metrics()
        return await asyncio.to_thread(self.page.read().render)

    def _control_plane(self) -> ASGIApp:
        ops = Ops(
            self.fleet,
            self.pools,
            self.scrape,
            lambda: self.stopping,
            self.instance,
            self.replication,
        )
        self.admin = admin_app(GatewayControl(self), self.settings.admin, lambda: self.siblings)
        admin = Mount("/admin", self.admin)
        routes: list[BaseRoute] = list(ops.routes())
        listen = self.settings.admin.listen
        if listen is None:
            routes.append(admin)
        else:
            own = [Route("/live", ops.live), Route("/metrics", ops.metrics), admin]
            handlers = {HTTPException: _http_error}
            self._admin_listener = AdminListener(
                Starlette(routes=own, exception_handlers=handlers), listen
            )
        app = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _http_error},
        )
        return KeyGuard(app, self.keys, refusal)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.disagg.say_protocols()
        self._ticker = asyncio.create_task(self._tick())
        for log in self.logs:
            log.start()
        if self._admin_listener is not None:
            await self._admin_listener.start()
        if self.settings.health.probes:
            await self.prober.start()
        await self.poller.start()
        if self.replication is not None:
            await self.replication.start()
        self.feeds.start()
        if self.reloader is not None:
            self.reloader.start()
        try:
            yield
        finally:
            self.stopping = True
            self.pools.close()
            await self.disagg.legs.settle()
            self._ticker.cancel()
            if self.reloader is not None:
                await self.reloader.stop()
            await self.feeds.stop()
            await self.prober.stop()
            await self.poller.stop()
            if self._admin_listener is not None:
                await self._admin_listener.stop()
            for upstream in self.upstreams.values():
                upstream.close()
            if self.replication is not None:
                await self.replication.stop()
            for log in self.logs:
                log.close()

    async def _tick(self) -> None:
        """Everything that only time can end: overdue tickets, silent backends, idle connections."""
        due = self.clock()
        while True:
            before = self.clock()
            await asyncio.sleep(EXPIRY_TICK)
            now = self.clock()
            self.metrics.loop_lag.observe(max(0.0, now - before - EXPIRY_TICK))
            self.fleet.tick()
            self.pools.expire()
            if now >= due:
                due = now + TICK
                self.reconciler.expire()
                self.learning.refresh()
                self.disagg.traffic.refresh()
                self._refresh_certificate()
                self.proxy.assume_prefilled(now)
                self.proxy.ping_silent()
                self.index.reclaim(RECLAIMED)
                self.following.tick()

    def _refresh_certificate(self) -> None:
        if self.certificate is None:
            return
        try:
            if self.certificate.refresh():
                logger.info("the listener's certificate was read anew")
        except ConfigError as error:
            logger.error("the listener keeps its certificate: %s", error)

    def _observe(self, record: RequestRecord) -> None:
        self.metrics.observe(record)
        self.disagg.traffic.ended(record)
        if self.access is not None:
            self.access.write(record)


def _log(kind: Callable[[str], L], option: str, path: str | None) -> L | None:
    if path is None:
        return None
    try:
        return kind(path)
    except OSError as error:
        raise _unwritable(option, path, error) from None


def _unwritable(option: str, path: str, error: OSError) -> ConfigError:
    return ConfigError(f"log.{option}: {path} cannot be written: {error.strerror}")


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wrong = RequestError(str(error.detail))
    wrong.status = error.status_code
    answer = refusal(request.method, request.url.path, wrong)
    answer.headers.update(error.headers or {})
    return answer
