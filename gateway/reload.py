"""Loading the settings anew while the gateway runs.

What the file says is read and tried as a whole before anything changes. Then those options that
have changed in the file since it was last loaded are set, all in one step of the event loop; what
was changed through the admin API and not in the file stays, and with Redis all that was changed
there. Streams, queues, index, counters and what was learnt are not touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.changes import changes
from gateway.config import ConfigError, Settings
from gateway.fleet.aliases import Aliases
from gateway.fleet.backend import Source
from policies.registry import build

if TYPE_CHECKING:
    from gateway.app import Gateway

logger = logging.getLogger("prefixgate.reload")

NEEDS_RESTART = frozenset(
    {
        *("server.host", "server.port", "server.parser"),
        *("server.tls", "backend_tls", "admin.listen", "redis", "replication"),
        *("disagg.connector", "disagg.fallback", "disagg.min_uncached_tokens"),
        *("health.probes", "log.access", "log.decisions"),
    }
)
"""Options that hold for as long as the process runs."""

SECRETS = dict.fromkeys(("auth", "admin"))
"""Sections that are put into force even if they have not changed: what they refer to may have."""

Apply = Callable[["Gateway", Settings], None]


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload did.

    Attributes:
        changed: options that have changed since the file was last loaded, and hold now.
        needs_restart: options that are not as the file says until the gateway is started anew.
        overridden: options that have changed, and do not hold because of the admin API.
    """

    changed: list[str]
    needs_restart: list[str]
    overridden: list[str] = []


def _server(gateway: Gateway, settings: Settings) -> None:
    gateway.dispatcher.response_headers = settings.server.response_headers
    gateway.bodies.limits = settings.server
    gateway.ingress.reconfigure(settings)


def _models(gateway: Gateway, settings: Settings) -> None:
    gateway.fleet.aliases = Aliases(settings.models)
    gateway.following.restate()


def _stored(gateway: Gateway, settings: Settings) -> None:
    gateway.owners.settings = settings.stored


def _policy(gateway: Gateway, settings: Settings) -> None:
    gateway.set_policy(build(settings.policy.name, settings.policy.params))
    gateway.following.restate()


def _scheduling(gateway: Gateway, settings: Settings) -> None:
    gateway.pools.scheduling = settings.scheduling


def _index(gateway: Gateway, settings: Settings) -> None:
    gateway.index.set_max_blocks(settings.index.max_blocks)
    gateway.following.restate()


def _fleet(gateway: Gateway, settings: Settings) -> None:
    gateway.fleet.reconfigure(settings.health, settings.breaker, settings.backpressure)


def _health(gateway: Gateway, settings: Settings) -> None:
    _fleet(gateway, settings)
    gateway.poller.settings = settings.health
    if settings.health.probes:
        gateway.prober.reconfigure(settings.health)


def _discovery(gateway: Gateway, settings: Settings) -> None:
    gateway.feeds.reconfigure(settings.discovery)


def _attempts(gateway: Gateway, settings: Settings) -> None:
    gateway.attempts.reconfigure(settings.retries, settings.timeouts)
    gateway.disagg.handovers.reconfigure(settings.timeouts)


def _disagg(gateway: Gateway, settings: Settings) -> None:
    gateway.disagg.networks.reconfigure(settings.disagg)


def _auth(gateway: Gateway, settings: Settings) -> None:
    gateway.keys.reconfigure(settings.auth)
    if gateway.replication is not None:
        gateway.replication.sharing.without_redis = settings.auth.without_redis
    gateway.ingress.reconfigure(settings)


def _admin(gateway: Gateway, settings: Settings) -> None:
    gateway.allow_rule.reconfigure(settings.admin.allow_backends)
    gateway.admin.reconfigure(settings.admin)


def _backends(gateway: Gateway, settings: Settings) -> None:
    gateway.reconciler.offer(Source.CONFIG, settings.backends)


def _log(gateway: Gateway, settings: Settings) -> None:
    logging.getLogger().setLevel(settings.log.level.upper())


SECTIONS: Mapping[str, Apply] = {
    "backends": _backends,
    "server": _server,
    "models": _models,
    "policy": _policy,
    "scheduling": _scheduling,
    "index": _index,
    "health": _health,
    "breaker": _fleet,
    "backpressure": _fleet,
    "discovery": _discovery,
    "disagg": _disagg,
    "timeouts": _attempts,
    "retries": _attempts,
    "stored": _stored,
    "auth": _auth,
    "admin": _admin,
    "log": _log,
}
"""By section, what puts it into force. They must not fail: the settings have been tried."""


class Reloader:
    """Args:
    gateway: the one that runs.
    path: the config file, watched as `server.watch` says.
    load: reads it, with the command line over it; raises ConfigError. Called in a thread.
    attempt: makes a gateway of settings, to see whether they can work; raises ConfigError.
        Called in a thread.
    """

    def __init__(
        self,
        gateway: Gateway,
        path: Path,
        load: Callable[[], Settings],
        attempt: Callable[[Settings], Gateway],
    ) -> None:
        self._gateway = gateway
        self._path = path
        self._load = load
        self._attempt = attempt
        self._loaded = gateway.settings
        self._one_at_a_time = asyncio.Lock()
        self._asked = False
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._tried = self._seen = _digest(path)

    def start(self) -> None:
        """Begin to hear of `ask`, and to watch."""
        self._loop = asyncio.get_running_loop()
        if self._asked:
            self._wake.set()
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def ask(self) -> None:
        """Have the file loaded soon, once however often this is called before. Safe in a signal
        handler."""
        self._asked = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._wake.set)

    async def reload(self) -> Reloaded:
        """Load the file now.

        Raises:
            ConfigError: it cannot be loaded; nothing has changed.
        """
        metrics = self._gateway.metrics
        async with self._one_at_a_time:
            try:
                reloaded = self._apply(await asyncio.to_thread(self._read))
            except ConfigError as error:
                logger.error("config not reloaded, everything stays as it was: %s", error)
                metrics.config_reloaded("refused")
                raise
            except Exception:
                logger.exception("config not reloaded: the gateway failed on it")
                metrics.config_reloaded("refused")
                raise
        self._wake.set()  # how often to look may have changed
        metrics.config_reloaded("applied" if reloaded.changed else "unchanged")
        logger.info("config reloaded, changed: %s", ", ".join(reloaded.changed) or "nothing")
        if reloaded.overridden:
            logger.warning(
                "config: set over the admin API, which holds: %s", ", ".join(reloaded.overridden)
            )
        if reloaded.needs_restart:
            logger.warning(
                "config: needs a restart to be as the file says: %s",
                ", ".join(reloaded.needs_restart),
            )
        return reloaded

    # in a thread

    def _read(self) -> Settings:
        self._tried = _digest(self._path)
        settings = self._load()
        refused: ConfigError | None = None
        try:
            self._attempt(settings)
        except ConfigError as error:
            refused = error.with_traceback(None)  # its frames hold what was tried
        # The parts of a gateway refer to each other, and the collector hardly ever looks by itself.
        gc.collect(1)
        if refused is not None:
            raise refused
        return settings

    # on the event loop

    def _apply(self, settings: Settings) -> Reloaded:
        gateway = self._gateway
        if self._loaded.backends and not settings.backends and not settings.discovery.sources:
            raise ConfigError(
                f"{self._path}: backends: is empty, and {len(self._loaded.backends)} were there; "
                "remove backends that should go through the admin API, or name one at least",
                field="backends",
            )
        changed = [
            option for option in changes(self._loaded, settings) if option not in NEEDS_RESTART
        ]
        try:
            after = gateway.overrides.reloaded(settings, changed)
        except ValueError as error:
            raise ConfigError(
                f"{self._path}: with what was changed through the admin API: {error}"
            ) from None
        gateway.fleet.renew_accesses()
        gateway.settings = after
        sections = dict.fromkeys(option.partition(".")[0] for option in changed)
        for section in sections | SECRETS:
            if section in SECTIONS:
                SECTIONS[section](gateway, after)
        self._loaded = settings
        overridden = gateway.overrides.hiding(changed)
        return Reloaded(
            [option for option in changed if option not in overridden],
            [name for name in changes(after, settings) if name in NEEDS_RESTART],
            overridden,
        )

    async def _run(self) -> None:
        while True:
            watch = self._gateway.settings.server.watch
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(watch):
                    await self._wake.wait()
            self._wake.clear()
            # What is wrong has been said by then; the next change may be right.
            with contextlib.suppress(Exception):
                if self._asked:
                    self._asked = False
                    await self.reload()
                elif watch is not None:
                    await self._look()

    async def _look(self) -> None:
        """Load the file if it has changed, and not since the last look: it may be half written."""
        seen, self._seen = self._seen, await asyncio.to_thread(_digest, self._path)
        if self._seen == seen and seen != self._tried:
            await self.reload()


def _digest(path: Path) -> bytes | None:
    """Of what is in a file now, whichever way it came there; None when it cannot be read."""
    try:
        return blake2b(path.read_bytes()).digest()
    except OSError:
        return None
