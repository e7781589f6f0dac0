"""Backends from a file that something else writes."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncGenerator
from pathlib import Path

from gateway.config import BackendConfig, ConfigError, FileSource, Section, parse
from gateway.fleet.address import Address
from gateway.fleet.backend import Source, check_models
from gateway.fleet.discovery.feed import FeedFailure, Listing
from gateway.fleet.listing import completed

MAX_BYTES = 4 * 1024 * 1024
SETTLE = 0.1
"""A file that has changed is believed once it stays the same for so long, in seconds: half of a
list may well be a list."""


class BackendList(Section, frozen=True, kw_only=True):
    """What the file says."""

    backends: list[BackendConfig]


class FileFeed:
    """Reads the whole file each time: no event can be missed, and it does not matter whether the
    file is written in place, renamed over, or a symbolic link that comes to point elsewhere."""

    source = Source.FILE

    def __init__(self, settings: FileSource) -> None:
        self.name = settings.name
        self.patience = settings.interval
        self.settings = settings
        self._path = Path(settings.path)

    async def lists(self) -> AsyncGenerator[Listing, None]:
        text: bytes | None = None
        listing = Listing(())
        while True:
            found = await asyncio.to_thread(self._read)
            if found != text:
                await asyncio.sleep(SETTLE)
                if await asyncio.to_thread(self._read) != found:
                    raise FeedFailure("is being written")
                listing = await asyncio.to_thread(self._parse, found)
                text = found
            yield listing
            await asyncio.sleep(self.settings.interval)

    def _read(self) -> bytes:
        try:
            # Not to wait for a writer where there is a pipe.
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise FeedFailure("is not a file")
                text = file.read(MAX_BYTES + 1)
        except OSError as error:
            raise FeedFailure(f"cannot be read: {error.strerror}") from None
        if len(text) > MAX_BYTES:
            raise FeedFailure(f"is larger than {MAX_BYTES} bytes")
        return text

    def _parse(self, text: bytes) -> Listing:
        """One entry that is wrong makes the whole file wrong: what was meant cannot be known."""
        try:
            entries = parse(text, BackendList, self._path.name).backends
            for number, entry in enumerate(entries):
                try:
                    Address.parse(entry.url)
                    check_models(entry.models)
                except ConfigError as error:
                    raise ConfigError(f"backends[{number}]: {error}") from None
            template = self.settings.backend
            return Listing(tuple(completed(entry, template) for entry in entries))
        except ValueError as error:
            raise FeedFailure(str(error)) from None
