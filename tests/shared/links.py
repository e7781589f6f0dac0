"""Links for tests, and waiting for what happens to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gateway.config import Redis
from gateway.shared.link import Link


@asynccontextmanager
async def linked(url: str, timeout: float = 2.0, **options: Any) -> AsyncIterator[Link]:
    """Started, and stopped at the end; not necessarily up."""
    link = Link(Redis(url=url, timeout=timeout, **options), time.monotonic)
    await link.start()
    try:
        yield link
    finally:
        await link.stop()


async def eventually(holds: Callable[[], object], timeout: float = 15.0) -> None:
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, "it has not come to be"
        await asyncio.sleep(0.01)
