"""What one API key's count tells Redis, and asks there.

One exchange at a time: what comes meanwhile goes with the next one, together.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

from gateway.http.errors import RequestError
from gateway.http.quota_script import QUOTA
from gateway.http.quota_sharing import QuotaSharing
from gateway.http.quotas import WINDOW, Limit, Used
from gateway.shared.records import Away, Refused

if TYPE_CHECKING:
    from gateway.http.shared_use import SharedReservation, SharedUse

TOGETHER = 1000
"""Requests that are asked for at once."""
_ANSWERS = (None, Limit.REQUESTS, Limit.TOKENS, Limit.CONCURRENCY)


class Ask:
    """A request that waits for its answer.

    Attributes:
        deadline: on the event loop's clock.
    """

    __slots__ = ("answer", "deadline", "reservation", "tokens")

    def __init__(
        self,
        reservation: SharedReservation,
        tokens: int,
        answer: asyncio.Future[None],
        deadline: float,
    ) -> None:
        self.reservation = reservation
        self.tokens = tokens
        self.answer = answer
        self.deadline = deadline


class Exchange:
    """Args:
    name: of the API key.

    Attributes:
        dirty: what was stated last no longer holds.
        stated: when that was, on the gateway's clock.
    """

    __slots__ = ("_asks", "_busy", "_key", "_sharing", "_use", "dirty", "stated")

    def __init__(self, sharing: QuotaSharing, name: str, use: SharedUse) -> None:
        self._sharing = sharing
        self._key = sharing.commands.key("limits", name)
        self._use = use
        self._asks: list[Ask] = []
        self._busy = False
        self.dirty = False
        self.stated = -math.inf

    def ask(self, reservation: SharedReservation, tokens: int) -> asyncio.Future[None]:
        """Whether a request may be sent; raises `RateLimited` or `LimitsUnknown` if not."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[None] = loop.create_future()
        self._asks.append(Ask(reservation, tokens, answer, loop.time() + self._sharing.timeout))
        self._send()
        return answer

    def state(self) -> None:
        """Tell Redis what is used here."""
        self.dirty = True
        self._send()

    def _send(self) -> None:
        if not self._busy and self._sharing.asks:
            self._busy = True
            self._sharing.spawn(self._run())

    async def _run(self) -> None:
        sharing = self._sharing
        loop = asyncio.get_running_loop()
        asks: list[Ask] = []
        try:
            while self._asks or self.dirty:
                asks = self._asks[:TOGETHER]
                del self._asks[:TOGETHER]
                timer = loop.call_at(asks[0].deadline, self._late, asks) if asks else None
                try:
                    reply = await sharing.commands.run(QUOTA, [self._key], self._words(asks))
                finally:
                    if timer is not None:
                        timer.cancel()
                if not reply:
                    raise Away("a later statement has overtaken this one")
                sharing.succeeded()
                self._take_in(reply, asks)
        except (Away, Refused):
            self.dirty = True
            sharing.failed()
        finally:
            self._busy = False
            if self._asks or not all(ask.answer.done() for ask in asks):
                self._late(asks)

    def _words(self, asks: list[Ask]) -> list[bytes | str | int | float]:
        """What the script is given."""
        sharing = self._sharing
        self.dirty = False
        self.stated = sharing.clock()
        return [
            sharing.replica,
            next(sharing.numbers),
            round(sharing.lease * 1000),
            round(WINDOW * 1000),
            *self._use.statement(self.stated),
            *(ask.tokens for ask in asks),
        ]

    def _take_in(self, reply: list[int], asks: list[Ask]) -> None:
        started, age, kept, *others = reply[:6]
        now = self._sharing.clock()
        self._use.heard(started, age / 1000, bool(kept), Used(*others), now)
        for ask, answer in zip(asks, reply[6:], strict=True):
            if ask.answer.done():
                continue  # decided without Redis, or gone: the next statement puts it right
            self._sharing.decided_shared += 1
            try:
                self._use.decide(ask.reservation, _ANSWERS[answer], ask.tokens, now)
            except RequestError as error:
                ask.answer.set_exception(error)
            else:
                ask.answer.set_result(None)

    def _late(self, asks: list[Ask]) -> None:
        """Wait no longer for Redis."""
        self._sharing.failed()
        waiting, self._asks = [*asks, *self._asks], []
        now = self._sharing.clock()
        for ask in waiting:
            if ask.answer.done():
                continue
            try:
                self._use.decide_alone(ask.reservation, ask.tokens, now)
            except RequestError as error:
                ask.answer.set_exception(error)
            else:
                ask.answer.set_result(None)
