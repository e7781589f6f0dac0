"""Going round the fleet again and again, with a task of its own for each backend."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.fleet.backend import Backend

CONCURRENCY = 32
"""Backends that are looked at at a time."""


class Rounds:
    """A round does not wait for the one before: a backend that hangs delays its own turns only.

    Args:
        begin: begins a round, with a `launch` for each backend that is to be looked at.
        interval: seconds from one round to the next.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        interval: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._begin = begin
        self._interval = interval
        self._sleep = sleep
        self._rounds: asyncio.Task[None] | None = None
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._running: dict[Backend, asyncio.Task[None]] = {}

    @property
    def started(self) -> bool:
        return self._rounds is not None

    def start(self) -> None:
        """Go round from now on, beginning at once; what is under way goes on."""
        if self._rounds is not None:
            self._rounds.cancel()
        self._rounds = asyncio.create_task(self._go())

    async def stop(self) -> None:
        """End everything, finished or not."""
        tasks = [*self._running.values()]
        if self._rounds is not None:
            tasks.append(self._rounds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._rounds = None

    def launch(self, backend: Backend, look: Callable[[Backend], Awaitable[None]]) -> None:
        """Look at a backend, unless that is under way, or nothing was started."""
        if self._rounds is None or backend in self._running:
            return
        task = asyncio.create_task(self._look(backend, look))
        self._running[backend] = task
        task.add_done_callback(lambda _: self._running.pop(backend, None))

    async def settle(self, *backends: Backend) -> None:
        """Wait until none of these, or none at all if none is named, is being looked at."""
        while running := [
            task for backend, task in self._running.items() if not backends or backend in backends
        ]:
            await asyncio.wait(running)

    async def _go(self) -> None:
        while True:
            self._begin()
            await self._sleep(self._interval())

    async def _look(self, backend: Backend, look: Callable[[Backend], Awaitable[None]]) -> None:
        async with self._slots:
            await look(backend)
