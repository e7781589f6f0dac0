"""Polling: asking engines again and again how busy they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.config import Health
from gateway.fleet.backend import Backend, BackendState
from gateway.fleet.engines.engine import EngineLoad
from gateway.fleet.engines.table import engine_of
from gateway.fleet.fleet import Fleet
from gateway.fleet.page import NoPage, PageReader
from gateway.fleet.rounds import Rounds
from gateway.types import Clock

logger = logging.getLogger("prefixgate.fleet")

POLLS_PER_SECOND = 50.0
"""Over all backends: a large fleet is asked less often, so that asking stays cheap."""
BELIEVED = 5.0
"""For how many intervals an answer stands for what comes after it."""


class LoadListener(Protocol):
    """Hears what engines say, by backend id."""

    def asked(self, id: str) -> None:
        """A backend is about to be asked."""

    def answered(self, id: str, said: EngineLoad) -> None: ...

    def failed(self, id: str) -> None:
        """It gave no answer, or one that says nothing."""

    def lost(self, id: str) -> None:
        """What it said last is too old to stand for anything."""


@dataclass(slots=True)
class _Signal:
    """What has become of asking one backend.

    Attributes:
        heard_at: when it last answered, on the gateway's clock; None while it never has.
        silent: its answers are missed, and that was said.
    """

    heard_at: float | None = None
    silent: bool = False


class LoadPoller:
    """Asks each backend that serves for its load, when it begins to and once an interval.

    Args:
        sleep: waits so many seconds between rounds.

    Attributes:
        settings: may be set at any time; the next round goes by them.
    """

    def __init__(
        self,
        fleet: Fleet,
        settings: Health,
        listener: LoadListener,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._fleet = fleet
        self.settings = settings
        self._listener = listener
        self._clock = clock
        self._rounds = Rounds(self._begin, lambda: self.interval, sleep)
        self._signals: dict[Backend, _Signal] = {}
        fleet.on_change(self._changed)

    async def start(self) -> None:
        """Begin. Does not wait for any answer."""
        self._rounds.start()

    async def stop(self) -> None:
        """End all polls, finished or not."""
        await self._rounds.stop()

    async def settle(self) -> None:
        """Wait until no poll is under way."""
        await self._rounds.settle()

    @property
    def interval(self) -> float:
        """Seconds between two polls of a backend."""
        least = len(self._signals) / POLLS_PER_SECOND
        return max(self.settings.load_interval or self.settings.interval, least)

    def _begin(self) -> None:
        for backend in self._fleet:
            self._launch(backend)

    def _changed(self, backend: Backend) -> None:
        serves = backend.condition is BackendState.HEALTHY
        if serves and backend not in self._signals:
            self._launch(backend)
        elif not serves and self._signals.pop(backend, None) is not None:
            self._listener.lost(backend.id)

    def _launch(self, backend: Backend) -> None:
        if (
            not self._rounds.started
            or self.settings.load_interval is None
            or backend.condition is not BackendState.HEALTHY
            or not engine_of(backend.kind).load_pages
        ):
            return
        self._signals.setdefault(backend, _Signal())
        self._rounds.launch(backend, self._poll)

    async def _poll(self, backend: Backend) -> None:
        timeout = min(self.settings.timeout, self.interval)
        pages = PageReader(backend.address, timeout, backend.access)
        self._listener.asked(backend.id)
        try:
            said = await _ask(backend, pages)
        except NoPage as failure:
            self._missed(backend, str(failure))
            if failure.refused:
                self._fleet.probe_doubted(backend)
        except Exception as error:
            logger.exception("polling backend %s failed inside the gateway", backend.id)
            self._missed(backend, f"the poll failed: {type(error).__name__}")
        else:
            self._heard(backend, said)

    def _heard(self, backend: Backend, said: EngineLoad) -> None:
        signal = self._signals.get(backend)
        if signal is None:
            return
        if signal.silent:
            logger.info("backend %s tells its load again", backend.id)
        signal.heard_at, signal.silent = self._clock(), False
        self._fleet.probe_read(backend, said.started, said.work)
        self._listener.answered(backend.id, said)

    def _missed(self, backend: Backend, cause: str) -> None:
        signal = self._signals.get(backend)
        if signal is None:
            return
        self._listener.failed(backend.id)
        heard_at = signal.heard_at
        stale = heard_at is None or self._clock() - heard_at > BELIEVED * self.interval
        if stale and not signal.silent:
            signal.silent = True
            self._listener.lost(backend.id)
            logger.warning(
                "backend %s (%s) does not tell its load, and goes by what is sent there: %s",
                backend.id,
                backend.address.url,
                cause,
            )


async def _ask(backend: Backend, pages: PageReader) -> EngineLoad:
    """Raises:
    NoPage: it does not say.
    """
    engine = engine_of(backend.kind)
    tried = []
    for path, read in engine.load_pages.items():
        page = await pages.get(path)
        if page.status == 200:
            said = read(page)
            if not said.says_nothing:
                return said
        told = "nothing of load" if page.status == 200 else f"status {page.status}"
        tried.append(f"GET {path}: {told}")
    hint = f" (it tells with {engine.load_flag})" if engine.load_flag else ""
    raise NoPage("; ".join(tried) + hint)
