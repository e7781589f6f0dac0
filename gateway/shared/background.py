"""What goes on beside the requests for as long as a replica runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

PAUSE = 1.0
"""Seconds before something that failed is begun again."""

logger = logging.getLogger("prefixgate.shared")


class Background:
    """Work that never ends by itself. What fails is begun again: sharing must not stop for one bug
    until the next restart.

    Args:
        name: of the part that it belongs to, for the log.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, *work: Callable[[], Awaitable[None]]) -> None:
        """Begin all of it, each beside the others."""
        self._tasks += [asyncio.create_task(self._go_on(each)) for each in work]

    async def stop(self) -> None:
        """Break all of it off, wherever it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _go_on(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except Exception:
                logger.exception("%s: something failed; it goes on", self._name)
                await asyncio.sleep(PAUSE)
