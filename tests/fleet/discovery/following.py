"""Feeds that fill a fleet, for real: real files, real sockets, real time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from gateway.config import Discovery, Health, convert
from gateway.fleet.backend import Backend, BackendState
from gateway.fleet.discovery.feeds import Feeds, FeedState
from gateway.fleet.fleet import Fleet
from gateway.fleet.reconciler import Reconciler

PATIENCE = 8.0
"""Whatever is waited for comes much sooner, unless it is broken."""


class Following:
    """A context manager.

    Attributes:
        removed: backends that left the fleet for good.
        heard: how often the fleet has changed.
    """

    def __init__(self, *, linger: float = 60.0, **sources: list[dict[str, Any]]) -> None:
        settings = convert({"linger": linger, **sources}, Discovery, "test")
        self.fleet = Fleet(Health(), time.monotonic)
        self.reconciler = Reconciler(self.fleet, time.monotonic, linger)
        self.feeds = Feeds(settings, self.reconciler, time.monotonic)
        self.removed: list[Backend] = []
        self.heard = 0
        self.fleet.on_change(self._changed)

    def _changed(self, backend: Backend) -> None:
        self.heard += 1
        if backend.state is BackendState.REMOVED:
            self.removed.append(backend)

    async def __aenter__(self) -> Following:
        self.feeds.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.feeds.stop()

    @property
    def state(self) -> FeedState:
        [state] = self.feeds
        return state

    @property
    def listed(self) -> set[str]:
        """Authorities of the backends that a source names now."""
        return {backend.address.authority for backend in self.fleet if not backend.unlisted}

    def the(self, authority: str) -> Backend:
        [found] = [each for each in self.fleet if each.address.authority == authority]
        return found

    async def lists(self, *authorities: str) -> None:
        """Wait until these and no others are listed."""
        await self.until(lambda: self.listed == set(authorities))

    async def fails(self, cause: str) -> None:
        """Wait until a reading has failed for this cause."""
        failures = self.state.failures
        await self.until(lambda: self.state.failures > failures and cause in self.state.cause)

    async def is_read(self) -> None:
        """Wait until a list has been read whose reading began after now."""
        for _ in range(2):
            before = self.state.read_at
            await self.until(lambda before=before: self.state.read_at != before)

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, (self.listed, [str(each) for each in self.feeds])
            await asyncio.sleep(0.01)
