"""All configured sources: followed for as long as the gateway runs, each in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.config import ConfigError, Discovery, FileSource
from gateway.fleet.backend import Source, check_models
from gateway.fleet.discovery.dns import DnsFeed
from gateway.fleet.discovery.feed import Feed, FeedFailure, Listing, at
from gateway.fleet.discovery.file import FileFeed
from gateway.fleet.discovery.kubernetes import KubernetesFeed
from gateway.fleet.reconciler import Reconciler
from gateway.types import Clock

logger = logging.getLogger("prefixgate.fleet")

FIRST_PAUSE = 0.5
"""After a failure, seconds; twice as long after each further one in a row."""


@dataclass(slots=True)
class FeedState:
    """How a source is.

    Attributes:
        read_at: when its list was last read, seconds on the gateway's clock; None before.
        failures: since the start.
        cause: why the last reading failed, or what was left out of the list; "" when all is well.
    """

    source: Source
    name: str
    read_at: float | None = None
    failures: int = 0
    cause: str = ""


class Feeds:
    """Raises:
    ConfigError: a source's settings cannot work.
    """

    def __init__(self, settings: Discovery, reconciler: Reconciler, clock: Clock) -> None:
        self._reconciler = reconciler
        self._clock = clock
        self._feeds = {feed.name: feed for feed in _built(settings, clock)}
        self._states = {name: FeedState(feed.source, name) for name, feed in self._feeds.items()}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._running = False

    def __iter__(self) -> Iterator[FeedState]:
        return iter(tuple(self._states.values()))

    def start(self) -> None:
        """Begin to follow all sources. Does not wait for their first lists."""
        self._running = True
        for name, feed in self._feeds.items():
            if name not in self._tasks:
                self._tasks[name] = asyncio.create_task(self._follow(feed, self._states[name]))

    async def stop(self) -> None:
        """Follow none any more. What they named stays."""
        self._running = False
        tasks = tuple(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def reconfigure(self, settings: Discovery) -> None:
        """Follow other sources. Those that stay as they are go on; what only those named that are
        no more goes as if it had left their lists.

        Raises:
            ConfigError: a source's settings cannot work. Then nothing has changed.
        """
        feeds = {feed.name: feed for feed in _built(settings, self._clock)}
        self._reconciler.linger = settings.linger
        for name, old in tuple(self._feeds.items()):
            new = feeds.get(name)
            if new is not None and new.settings == old.settings:
                feeds[name] = old
                continue
            if name in self._tasks:
                self._tasks.pop(name).cancel()
            if new is None:
                del self._states[name]
                self._reconciler.withdraw(old.source, name)
        self._feeds = feeds
        for name, feed in feeds.items():
            self._states.setdefault(name, FeedState(feed.source, name))
        if self._running:
            self.start()

    async def _follow(self, feed: Feed, state: FeedState) -> None:
        failed = 0
        while True:
            try:
                async with contextlib.aclosing(feed.lists()) as lists:
                    async for listing in lists:
                        failed = 0
                        self._take(feed, state, listing)
            except FeedFailure as failure:
                cause = str(failure)
            except Exception as error:
                logger.exception("%s failed inside the gateway", feed.name)
                cause = f"it failed inside the gateway: {type(error).__name__}"
            else:
                cause = "it ended"
            failed += 1
            state.failures += 1
            if state.cause != cause:
                logger.warning("%s: %s: its last list stays", feed.name, cause)
            state.cause = cause
            pause = min(feed.patience, FIRST_PAUSE * 2 ** min(failed - 1, 16))
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))

    def _take(self, feed: Feed, state: FeedState, listing: Listing) -> None:
        state.read_at = self._clock()
        cause = "; ".join(listing.left_out[:5])
        if cause and cause != state.cause:
            logger.warning("%s: left out: %s", feed.name, cause)
        elif state.cause and not cause:
            logger.info("%s: is read again", feed.name)
        state.cause = cause
        self._reconciler.offer(feed.source, listing.entries, feed.name, listing.incarnations)


def _built(settings: Discovery, clock: Clock) -> Iterator[Feed]:
    for source in settings.sources:
        scheme = "https" if isinstance(source, FileSource) else source.scheme
        try:
            check_models(at(f"{scheme}://x", source.backend).models)
        except ValueError as error:
            field = "discovery"
            raise ConfigError(f"discovery: {source.name}: backend: {error}", field) from None
    for file in settings.file:
        yield FileFeed(file)
    for dns in settings.dns:
        yield DnsFeed(dns, clock)
    for kubernetes in settings.kubernetes:
        yield KubernetesFeed(kubernetes)
