"""The composition root: builds every part from the settings, owns their start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount

from gateway.admin.api import admin_app
from gateway.config import Settings
from gateway.control import GatewayControl
from gateway.fleet.backend import Backend, BackendState
from gateway.fleet.fleet import Fleet
from gateway.fleet.health import Prober
from gateway.fleet.upstream import TICK, Upstream
from gateway.http.client import Receive, Scope, Send
from gateway.http.errors import RequestError
from gateway.http.ops import Ops, is_control_path, refusal
from gateway.http.proxy import Proxy
from gateway.http.server import GatewayProtocol
from gateway.prefix.blocks import BlockScale
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pools import ANY_MODEL, Pools
from gateway.telemetry.metrics import Metrics
from gateway.types import Clock
from policies.registry import build

logger = logging.getLogger("prefixgate")

EXPIRY_TICK = 0.05
"""How often overdue tickets are looked for, in seconds."""


class Gateway:
    """One gateway process without its listening socket: an ASGI application.

    Args:
        clock: seconds, monotonic.

    Raises:
        ConfigError: the policy, its parameters or a backend's address is wrong.
    """

    def __init__(self, settings: Settings, clock: Clock = time.monotonic) -> None:
        self.settings = settings
        self.clock = clock
        self.stopping = False
        self.scale = BlockScale()
        self.index = PrefixIndex(self.scale, settings.index.max_blocks)
        self.fleet = Fleet(settings.health, clock)
        policy = build(settings.policy.name, settings.policy.params)
        self.pools = Pools(policy, settings.scheduling, clock)
        self.upstreams: dict[str, Upstream] = {}
        self.loads: dict[str, BackendLoad] = {}
        self.metrics = Metrics()
        self.proxy = Proxy(
            settings=settings,
            fleet=self.fleet,
            upstreams=self.upstreams,
            pools=self.pools,
            index=self.index,
            scale=self.scale,
            metrics=self.metrics,
            clock=clock,
        )
        self._prober = Prober(self.fleet, settings.health)
        self._ticker: asyncio.Task[None] | None = None
        self._starlette = self._control_plane()
        self.fleet.on_change(self._backend_changed)
        self.fleet.on_restart(self._backend_restarted)
        for backend in settings.backends:
            self.fleet.add(backend)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_control_path(scope["path"]):
            await self.proxy(scope, receive, send)
        else:
            await self._starlette(scope, receive, send)

    def _control_plane(self) -> Starlette:
        ops = Ops(self.fleet, self.metrics.render, lambda: self.stopping)
        admin = admin_app(GatewayControl(self), self.settings.admin)
        return Starlette(
            routes=[*ops.routes(), Mount("/admin", admin)],
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _http_error},
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._ticker = asyncio.create_task(self._tick())
        await self._prober.start()
        try:
            yield
        finally:
            self.stopping = True
            self.pools.close()
            self._ticker.cancel()
            await self._prober.stop()
            for upstream in self.upstreams.values():
                upstream.close()

    async def _tick(self) -> None:
        """Everything that only time can end: overdue tickets, silent backends, idle connections."""
        due = self.clock() + TICK
        while True:
            await asyncio.sleep(EXPIRY_TICK)
            self.pools.expire()
            if self.clock() >= due:
                due += TICK
                for upstream in list(self.upstreams.values()):
                    upstream.tick()

    # the fleet's news

    def _backend_changed(self, backend: Backend) -> None:
        """Keep connections, ledger, index and pools in step with one backend."""
        id = backend.id
        if backend.state is BackendState.REMOVED:
            upstream = self.upstreams.pop(id, None)
            if upstream is not None:
                upstream.close()
            self.loads.pop(id, None)
            self.index.remove_backend(id)
        else:
            capacity = float(backend.capacity_tokens or self.settings.index.capacity_tokens)
            if id not in self.upstreams:
                address = backend.address
                tls = ssl.create_default_context() if address.scheme == "https" else None
                self.upstreams[id] = Upstream(
                    address.host, address.port, self.settings.timeouts, self.clock, tls
                )
                self.loads[id] = BackendLoad(id)
                self.index.add_backend(id, capacity)
            self.loads[id].capacity_tokens = capacity
            self.index.set_capacity(id, capacity)
        serving: dict[str, list[BackendLoad]] = {}
        for other in self.fleet:
            if other.state is BackendState.HEALTHY:
                for model in (*other.models, ANY_MODEL):
                    serving.setdefault(model, []).append(self.loads[other.id])
        self.pools.update(serving)

    def _backend_restarted(self, backend: Backend) -> None:
        logger.warning("backend %s restarted: its prefixes are forgotten", backend.id)
        self.index.reset_backend(backend.id)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    wrong = RequestError(str(error.detail))
    wrong.status = error.status_code
    return refusal(request.method, request.url.path, wrong)


def check(settings: Settings) -> None:
    """Build everything that the settings describe, without serving.

    Raises:
        ConfigError: something in them cannot work.
    """
    Gateway(settings)


def serve(settings: Settings) -> int:
    """Run until a signal says stop. Returns the exit code."""
    logging.basicConfig(
        level=settings.log.level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    _raise_descriptor_limit()
    gateway = Gateway(settings)
    server = settings.server
    http: Any = GatewayProtocol if server.parser == "httptools" else "h11"
    config = uvicorn.Config(
        gateway,
        host=server.host,
        port=server.port,
        http=http,
        ws="none",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(server.keep_alive),
    )
    uvicorn.Server(config).run()
    return 0


def _raise_descriptor_limit() -> None:
    """Each stream takes two descriptors; the usual soft limit of 1024 is 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
