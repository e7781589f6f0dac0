"""The gateway as a process: its signals, its exit codes, what it asks of the machine."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import uvicorn

from gateway.app import Gateway
from gateway.config import Settings
from gateway.descriptors import raise_limit
from gateway.http.server import GatewayProtocol, StrictProtocol
from gateway.listener import Listener
from gateway.reload import Reloader
from gateway.secrets import warn_of_plain, warn_of_weak
from gateway.sockets import listen

logger = logging.getLogger("prefixgate")


def check(settings: Settings, instance: str | None = None, workers: int = 1) -> Gateway:
    """Build everything that the settings describe, without serving or touching anything.

    Args:
        instance, workers: as `Gateway` takes them.

    Raises:
        ConfigError: something in them cannot work.
    """
    return Gateway(settings, instance=instance, workers=workers)


def serve(load: Callable[[], Settings], path: Path | None = None) -> int:
    """Run until a signal says stop.

    Args:
        load: reads the settings, now and at every reload.
        path: the config file that it reads, if there is one.

    Returns:
        The exit code.

    Raises:
        ConfigError: something in the settings cannot work.
        CannotListen: the address is in use, or not ours.
    """
    settings, gateway = begin(load)
    raise_limit(settings)
    sockets = listen(settings.server.host, settings.server.port, "server.host, server.port")
    gateway.listen_for_admins()
    gateway.open_logs()
    advise(settings, path)
    prepare(gateway, load, path)
    signal.signal(signal.SIGHUP, lambda *_: hang_up(gateway))
    listener = Listener(listener_config(gateway), gateway)
    listener.run(sockets)
    return listener.exit_code


def begin(load: Callable[[], Settings]) -> tuple[Settings, Gateway]:
    """What whoever is started by hand does first.

    Raises:
        ConfigError: something in the settings cannot work.
    """
    # A server takes these signals over while it runs. Being told to stop before that is no failure.
    signal.signal(signal.SIGTERM, _ended)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = load()
    start_logging(settings)
    return settings, check(settings)


def start_logging(settings: Settings, who: str = "") -> None:
    """Args:
    who: stands before each line's text.
    """
    logging.basicConfig(
        level=settings.log.level.upper(),
        format=f"%(asctime)s %(levelname)s %(name)s: {who}%(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)


def advise(settings: Settings, path: Path | None) -> None:
    """Warn of what works and is hardly meant."""
    warn_of_weak(settings)
    if path is not None:
        warn_of_plain(settings, path)
    if not settings.backends and not settings.discovery.sources:
        logger.warning(
            "no backends: requests are answered with 503 until there is one. Name them in the "
            "settings (backends, discovery), on the command line (--backend URL), or add them with "
            "POST /admin/v1/backends"
        )
    if settings.auth.enabled and not settings.auth.keys:
        logger.warning(
            "auth.enabled without auth.keys: all requests are answered with 401. `prefixgate "
            "hash-key` makes a key, and so does POST /admin/v1/keys"
        )


def prepare(gateway: Gateway, load: Callable[[], Settings], path: Path | None) -> None:
    """What is done once, at the last moment before a gateway serves."""
    if path is not None:
        gateway.reloader = Reloader(gateway, path, load, check)
    _spare_the_collector()


def hang_up(gateway: Gateway) -> None:
    """SIGHUP is what log rotation sends, and what people send who have edited the settings. Safe in
    a signal handler."""
    for log in gateway.logs:
        log.reopen()
    if gateway.reloader is not None:
        gateway.reloader.ask()


def listener_config(gateway: Gateway) -> uvicorn.Config:
    server = gateway.settings.server
    protocol = GatewayProtocol if server.parser == "httptools" else StrictProtocol
    http: Any = partial(protocol, lambda: gateway.settings.server, gateway.metrics.refused)
    certificate = gateway.certificate
    return uvicorn.Config(
        gateway,
        http=http,
        ws="none",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        h11_max_incomplete_event_size=server.max_head,
        ssl_context_factory=None if certificate is None else lambda *_: certificate.context,
    )


def _ended(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _spare_the_collector() -> None:
    """A full collection walks the whole index, 60 ms for a million blocks, and finds nothing:
    requests leave no cycles behind. What is left for it is third parties' garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 1_000)
