"""Probing: the one place that asks backends how they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from gateway.config import Health
from gateway.fleet.backend import Backend, BackendState
from gateway.fleet.detect import MODELS, detect, with_models
from gateway.fleet.facts import EngineFacts, ModelList
from gateway.fleet.fleet import Fleet
from gateway.fleet.page import NoPage, PageReader
from gateway.fleet.rounds import Rounds
from gateway.types import EngineKind

logger = logging.getLogger("prefixgate.fleet")

DETECT_EVERY = 6
"""Every so many rounds a healthy backend's facts are read anew, its models at each."""


class Prober:
    """Probes each backend when it is added, when it is suspected, and once an interval.

    Args:
        sleep: waits so many seconds between rounds.
        instance: what this gateway's own model list says of the process that answers.
        also: asks a backend that serves for more; raises nothing.

    Attributes:
        settings: changed by `reconfigure`.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: Health,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        instance: str = "",
        also: Callable[[Backend], Awaitable[None]] | None = None,
    ) -> None:
        self._fleet = fleet
        self.settings = settings
        self._instance = instance
        self._also = also
        self._rounds = Rounds(self._begin, lambda: self.settings.interval, sleep)
        self._suspects: set[Backend] = set()
        self._round = 0
        fleet.on_suspicion(self._suspect)

    async def start(self) -> None:
        """Begin, with a probe of every backend at once. Does not wait for what they find."""
        self._rounds.start()

    async def stop(self) -> None:
        """End all probes, finished or not."""
        await self._rounds.stop()

    def reconfigure(self, settings: Health) -> None:
        """Keep to other settings from now on, beginning with a round."""
        self.settings = settings
        if self._rounds.started:
            self._rounds.start()

    async def settle(self, *backends: Backend) -> None:
        """Wait until no probe of these backends, or of any if none is named, is under way."""
        await self._rounds.settle(*backends)

    def _begin(self) -> None:
        self._round += 1
        self._suspects.clear()
        for backend in self._fleet:
            self._rounds.launch(backend, self._probe)

    def _suspect(self, backend: Backend) -> None:
        """Probe out of turn, but not again and again while a busy backend fails."""
        if backend not in self._suspects:
            self._suspects.add(backend)
            self._rounds.launch(backend, self._probe)

    async def _probe(self, backend: Backend) -> None:
        pages = PageReader(backend.address, self.settings.timeout, backend.access, self._instance)
        try:
            facts = await self._look(backend, pages)
            if self._also is not None:
                await self._also(backend)
        except NoPage as failure:
            if failure.ours:
                logger.warning("backend %s is not probed: %s", backend.id, failure)
                return
            self._fleet.probe_failed(backend, str(failure), gone=failure.refused)
        except Exception as error:
            logger.exception("probing backend %s failed inside the gateway", backend.id)
            self._fleet.probe_failed(backend, f"the probe failed: {type(error).__name__}")
        else:
            logger.debug("backend %s answers its probe, as %s", backend.id, facts.kind)
            self._fleet.probe_succeeded(backend, facts)

    async def _look(self, backend: Backend, pages: PageReader) -> EngineFacts:
        """Raises:
        NoPage: it does not serve, and why.
        """
        facts = backend.facts
        if facts is None or _in_doubt(backend) or self._round % DETECT_EVERY == 0:
            facts = await detect(pages, backend.config.kind or _known_kind(backend))
        else:
            page = await pages.find(MODELS)
            models = page.read(ModelList) if page is not None else None
            if models is not None:
                facts = with_models(facts, models)
        health = await pages.get(facts.health_path)
        # 401 and 403: it is up, and takes the clients' keys, of which the gateway has none.
        if not (200 <= health.status < 300 or health.status in (401, 403)):
            raise NoPage(f"GET {facts.health_path}: status {health.status}")
        return facts


def _known_kind(backend: Backend) -> EngineKind | None:
    """None where it must be found out anew: another process may listen, or none was recognised."""
    if backend.facts is None or backend.doubted or backend.facts.kind is EngineKind.OPENAI:
        return None
    return backend.facts.kind


def _in_doubt(backend: Backend) -> bool:
    return (
        backend.condition is not BackendState.HEALTHY
        or backend.doubted
        or backend.failed_probes > 0
        or backend.breaker.failures > 0
    )
