"""The gateway as a process: its listening socket, its signals, its limits."""

from __future__ import annotations

import gc
import logging
import math
import resource
import signal
from types import FrameType
from typing import Any, NoReturn

import uvicorn

from gateway.app import Gateway
from gateway.config import Settings
from gateway.http.server import GatewayProtocol


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
    keep_alive: Any = server.keep_alive  # declared as whole seconds, but a timer like any other
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
        timeout_keep_alive=keep_alive,
        timeout_graceful_shutdown=math.ceil(server.drain),
    )
    _spare_the_collector()
    # uvicorn takes the signal over while it runs, and raises it once more when it has ended.
    signal.signal(signal.SIGTERM, _ended)
    _reopen_on_hangup(gateway)
    _Server(config, gateway).run()
    return 0


class _Server(uvicorn.Server):
    """Tells the gateway of a signal to stop when it comes, not when everything has ended."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True  # asked twice
        self._gateway.stop_soon()
        super().handle_exit(sig, frame)


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    """Being told to stop is no failure."""
    raise SystemExit(0)


def _reopen_on_hangup(gateway: Gateway) -> None:
    """SIGHUP is what log rotation sends."""

    def reopen(number: int, frame: FrameType | None) -> None:
        for log in gateway.logs:
            log.reopen()

    if gateway.logs:
        signal.signal(signal.SIGHUP, reopen)


def _spare_the_collector() -> None:
    """A full collection walks the whole index, 60 ms for a million blocks, and finds nothing:
    requests leave no cycles behind. What is left for it is third parties' garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 1_000)


def _raise_descriptor_limit() -> None:
    """Each stream takes two descriptors; the usual soft limit of 1024 is 500 streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
