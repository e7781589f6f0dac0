"""The answer to a prefill leg, as far as anybody needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from gateway.disagg.connector import NoTransfer
from gateway.disagg.holding import Holding
from gateway.fleet.upstream import Connection, FailureKind, Headers, UpstreamFailure

MAX_ANSWER = 16 * 1024 * 1024
"""Bytes of an answer that the decode leg is made of: some have the prompt's token ids in them. What
is longer is nobody's fault, and its request is not handed over."""
MAX_TAIL = 1024 * 1024
"""Bytes that may come of an answer beyond what is read of it."""
TAIL = 1.0
"""Seconds that an engine has to end an answer of which nothing more is needed."""
LINGER = 0.5
"""Seconds in which an engine that is hung up on shows whether it has computed the prompt."""
LAST_BYTES = 16 * 1024
"""Of an answer that nobody needs: engines tell their counts at its end."""
_LOOKS = 16
"""How often an answer that has not ended is looked at to see whether it is whole."""


class LegRefused(Exception):
    """The prefill engine answered, and did not serve.

    Attributes:
        status, headers, body: of its answer.
    """

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.body = body


class AnswerTooLarge(NoTransfer):
    """The answer is longer than `MAX_ANSWER`. That of any other engine would be, too."""

    def __init__(self) -> None:
        super().__init__(f"the prefill engine's answer is over {MAX_ANSWER} bytes", held=True)


class PrefillLeg:
    """The sink of a prefill leg's exchange. Its answer is there as soon as its JSON is whole; how
    the engine then ends it, nobody waits for.

    Args:
        needed: the decode leg is made of the answer. Else its beginning is dropped as it comes.

    Attributes:
        done: the answer, or as much of its end as is kept of one that is not needed. Raises
            UpstreamFailure, LegRefused or AnswerTooLarge.
        status: 0 before the head.
    """

    __slots__ = (
        "_connection",
        "_headers",
        "_hung_up",
        "_looks",
        "_needed",
        "_parts",
        "_size",
        "_tail",
        "done",
        "status",
    )

    def __init__(self, *, needed: bool) -> None:
        self.done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        # Whoever waits for it may be gone when it fails.
        self.done.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.status = 0
        self._needed = needed
        self._connection: Connection | None = None
        self._headers: Headers = []
        self._parts: list[bytes] = []
        self._size = 0
        self._looks = 0
        self._hung_up = False
        self._tail: asyncio.TimerHandle | None = None

    def carry(self, connection: Connection) -> None:
        """The answer will come through `connection`."""
        self._connection = connection

    @property
    def computed(self) -> bool:
        """The engine has begun to say that it has the prompt."""
        return 200 <= self.status < 300

    @property
    def holding(self) -> Holding:
        """What the engine holds of the prompt, once the leg is over. One that was broken off, by
        us or in the middle, says nothing of it. Nor does an engine that is hung up on and ends the
        connection without a byte: mostly it drops the request, but it drops the answer alone when
        the prompt is just computed. One that ends it unprompted has dropped the request."""
        if self.computed:
            return Holding.COMPUTED
        if self.status:
            return Holding.NOTHING
        if not self.done.done() or self.done.cancelled():
            return Holding.UNCLEAR
        failure = self.done.exception()
        dropped = not isinstance(failure, UpstreamFailure) or failure.kind is FailureKind.RESET
        return Holding.NOTHING if dropped and not self._hung_up else Holding.UNCLEAR

    @property
    def answer(self) -> bytes | None:
        """None while there is none, or when it failed."""
        done = self.done
        if not done.done() or done.cancelled() or done.exception() is not None:
            return None
        return done.result()

    def hang_up(self, over: Callable[[], None]) -> None:
        """Nobody waits for the answer any more, and whoever did has given up `done`. The engine
        sees that nobody is listening; what it has sent of an answer by then is still read.

        Args:
            over: called once that is over, one way or another.
        """
        self.done = asyncio.get_running_loop().create_future()

        def ended(done: asyncio.Future[bytes]) -> None:
            done.exception()
            self._abort()
            over()

        self.done.add_done_callback(ended)
        if self._connection is not None and self._connection.hang_up():
            self._hung_up = True
            self._tail = asyncio.get_running_loop().call_later(LINGER, self._fail, _silent())
        else:
            self._fail(UpstreamFailure(FailureKind.RESET))

    def cancel(self) -> None:
        """Nobody wants the answer any more. The engine sees that nobody is listening."""
        self._abort()
        self.done.cancel()

    # Sink

    def on_head(self, status: int, headers: Headers, first: bytes) -> None:
        self.status = status
        self._headers = headers
        if status < 300 and _is_stream(headers):
            self._fail(_wrong("an event stream where JSON was asked for"))
            return
        self._add(first)

    def on_body(self, data: bytes) -> None:
        self._add(data)

    def on_end(self, *, framed: bool) -> None:
        self._stop()
        if self.done.done():
            return
        body = b"".join(self._parts)
        if self._needed and not framed and not _is_whole(body):
            self.done.set_exception(UpstreamFailure(FailureKind.INCOMPLETE))
        else:
            self._settle(body)

    def on_failure(self, failure: UpstreamFailure) -> None:
        self._stop()
        if not self.done.done():
            self.done.set_exception(failure)

    # how it is done

    def _add(self, data: bytes) -> None:
        self._size += len(data)
        if self.done.done():
            if self._size > MAX_ANSWER + MAX_TAIL:
                self._abort()
            return
        self._parts.append(data)
        if not self._needed and self.status < 300:
            if self._size > LAST_BYTES:
                self._parts = [b"".join(self._parts)[-LAST_BYTES:]]
        elif self._size > MAX_ANSWER:
            self._fail(AnswerTooLarge() if self.computed else _wrong("the answer is too large"))
        elif self._looks < _LOOKS and data.rstrip().endswith(b"}"):
            self._looks += 1
            body = b"".join(self._parts)
            if _is_whole(body):
                self._settle(body)
                if self._connection is not None and self._tail is None:
                    self._tail = asyncio.get_running_loop().call_later(TAIL, self.cancel)

    def _settle(self, body: bytes) -> None:
        self._parts = []
        if self.status < 300:
            self.done.set_result(body)
        else:
            self.done.set_exception(LegRefused(self.status, self._headers, body))

    def _fail(self, failure: UpstreamFailure | NoTransfer) -> None:
        self._abort()
        self._parts = []
        if not self.done.done():
            self.done.set_exception(failure)

    def _abort(self) -> None:
        connection = self._connection
        self._stop()
        if connection is not None:
            connection.abort()

    def _stop(self) -> None:
        self._connection = None  # from here on it may carry another exchange
        if self._tail is not None:
            self._tail.cancel()
            self._tail = None


def _wrong(why: str) -> UpstreamFailure:
    return UpstreamFailure(FailureKind.PROTOCOL, why)


def _silent() -> UpstreamFailure:
    return UpstreamFailure(FailureKind.FIRST_BYTE_TIMEOUT)


def _is_stream(headers: Headers) -> bool:
    return any(
        name == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in headers
    )


def _is_whole(body: bytes) -> bool:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except ValueError:
        return False
    return True
