"""Telling engines to let go of what nobody will fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.disagg.connector import Release
from gateway.fleet.time_limits import TimeLimits
from gateway.fleet.upstream import Headers, OutOfDescriptors, Upstream, UpstreamFailure
from gateway.types import Clock

LIMITS = TimeLimits(connect=2.0, first_byte=10.0, idle=10.0, total=10.0)
MAX_UNDER_WAY = 256
"""Releases that are being sent. What comes beyond is left to the engines' own time limits."""
MAX_ANSWER = 1024 * 1024


class _Heard:
    """The sink of a release: that its engine has answered is all that matters."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._left = MAX_ANSWER

    def on_head(self, status: int, headers: Headers, first: bytes) -> None:
        self.on_body(first)

    def on_body(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            self._settle()

    def on_end(self, *, framed: bool) -> None:
        self._settle()

    def on_failure(self, failure: UpstreamFailure) -> None:
        if not self.done.done():
            self.done.set_exception(failure)

    def _settle(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Releases:
    """Sends them aside of any request, each once.

    Args:
        sent: told of each, whether its engine has answered.
    """

    def __init__(self, clock: Clock, sent: Callable[[bool], None]) -> None:
        self._clock = clock
        self._sent = sent
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, upstream: Upstream, head: bytes, release: Release) -> None:
        if len(self._tasks) >= MAX_UNDER_WAY:
            self._sent(False)
            return
        task = asyncio.create_task(self._run(upstream, head, release.body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, upstream: Upstream, head: bytes, body: bytes) -> None:
        heard = _Heard()
        ok = False
        try:
            connection = await upstream.dial(LIMITS.connect)
            assert LIMITS.total is not None
            connection.send(head, body, heard, LIMITS, ends_at=self._clock() + LIMITS.total)
            try:
                await heard.done
                ok = True
            finally:
                if not ok or connection.transport.is_closing():
                    connection.abort()
        except (UpstreamFailure, OutOfDescriptors):
            pass
        finally:
            self._sent(ok)
