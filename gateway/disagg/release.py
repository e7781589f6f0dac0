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
_UNHEARD = frozenset({401, 403})
"""Of an engine that lets nobody in without the right key."""


class _Heard:
    """The sink of a release: that its engine has answered is all that matters, unless it has not
    even looked at it.

    Attributes:
        done: whether it has.
    """

    def __init__(self) -> None:
        self.done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._left = MAX_ANSWER
        self._taken = False

    def on_head(self, status: int, headers: Headers, first: bytes) -> None:
        self._taken = status not in _UNHEARD
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
            self.done.set_result(self._taken)


class Releases:
    """Sends them aside of any request, each once.

    Args:
        sent: told of each once, whether its engine has taken it.

    Attributes:
        under_way: they are being sent.
    """

    def __init__(self, clock: Clock, sent: Callable[[bool], None]) -> None:
        self._clock = clock
        self._sent = sent
        self.under_way: set[asyncio.Task[None]] = set()

    def send(self, upstream: Upstream, head: bytes, release: Release) -> None:
        if len(self.under_way) >= MAX_UNDER_WAY:
            self._sent(False)
            return
        task = asyncio.create_task(self._run(upstream, head, release.body))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _run(self, upstream: Upstream, head: bytes, body: bytes) -> None:
        heard = _Heard()
        ok = False
        try:
            connection = await upstream.dial(LIMITS.connect)
            assert LIMITS.total is not None
            connection.send(head, body, heard, LIMITS, ends_at=self._clock() + LIMITS.total)
            try:
                ok = await heard.done
            finally:
                if not ok or connection.transport.is_closing():
                    connection.abort()
        except (UpstreamFailure, OutOfDescriptors):
            pass
        finally:
            self._sent(ok)
