"""One answer on its way from a backend to the client.

The relay is the sink of an upstream connection and writes to the client as bytes come in. Small
JSON answers are held until they are whole, so that one that breaks off is an error and never a
truncated 200; event streams and everything large go out at once. Bytes are never changed; what
must be known of them is read from the side by the dialect's scanner.

While another backend could serve the request, what can still be taken back is held back: refusals
until they are whole, and the head of a stream until an event of the stream has come, which may be
long after the head. A stream that begins with an error counts as a refusal. Comments before that
open a stream of the gateway's own, which any backend's answer can go on with.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from typing import Protocol

from gateway.fleet.upstream import TICK, FailureKind, Headers, UpstreamFailure
from gateway.http.client import Client
from gateway.http.dialects.base import Dialect, Usage
from gateway.http.dialects.errors import error_message, lacks_model
from gateway.http.dialects.usage import usage_at_end
from gateway.http.errors import RequestError
from gateway.http.failures import (
    BROKEN,
    BUSY,
    ERROR_EVENT,
    MISSING_MODEL,
    Failure,
    Retry,
    refusal,
    retry_after_seconds,
)
from gateway.http.headers import ResponseHeaders, read_response
from gateway.http.sse import StreamScanner
from gateway.http.stored import Stored, stored_id
from gateway.types import Clock

HOLD_BYTES = 256 * 1024
MAX_IN_STREAM = 4 * 1024 * 1024
"""Bytes of an answer that is no stream, where comments have opened one: it becomes one event."""
MAX_INFLATED = 16 * 1024 * 1024
"""Bytes that one read of a compressed stream may grow to."""
MAX_READ = 4 * 1024 * 1024
"""Bytes that a whole compressed answer may grow to, for what is read of it."""
LAST_BYTES = 16 * 1024
"""Of an answer that is no stream and too large to be held: engines tell their counts at its end."""
TAIL = 5.0
"""Seconds that a backend has to end a stream whose client left after its last event."""
COMMENT = b": waiting\n\n"
_STREAM_HEAD = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_COMPRESSED = frozenset({b"gzip", b"x-gzip", b"deflate"})
_comments = re.compile(rb"(?:(?::[^\r\n]*+)?+(?:\r\n|\r|\n))*+").fullmatch


class Carrier(Protocol):
    """The upstream connection of an exchange, as far as the relay is concerned."""

    def abort(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Relay:
    """Passes one answer on and notes what happened to it.

    Args:
        extra: headers that the gateway adds to the answer.
        accept_encoding: the client's, to know whether it can read a compressed answer.
        on_accepted: called once, when the backend has shown that it took the work: the first
            content of a stream, the head of any other successful answer.
        may_retry: keep back what can be taken back: the request may be served by another backend.
        retry_after: seconds that a busy backend's client is told to wait, where the backend does
            not say.
        opened: an event stream was begun for this request before, with comments only.
        stored: told the id of an answer that the backend keeps; None where none are kept.

    Attributes:
        done: result None when the answer ended or the client left; exception UpstreamFailure
            when it failed before anything was sent to the client.
        status: the backend's status, 0 before its head.
        first_at, ended_at: seconds on the clock; `first_at` is the first content of a stream.
        opened: the client has a head and comments of ours, and nothing of an answer yet.
        failure: what broke the answer, also after its head was sent.
        lacks_model: the backend said that it has no such model, although it lists it.
        refused: the backend's refusal is here in full and was kept back; `pass_on` sends it.
        unbegun: nothing of the answer has come, but for a stream's head.
        says_wait: seconds of the backend's Retry-After; None when it sent none that can be read.
        scanner: the event stream's; None for any other answer.
        usage: what the engine reported in an answer that is not a stream.
    """

    __slots__ = (
        "_accept_encoding",
        "_carrier",
        "_client",
        "_clock",
        "_decoder",
        "_dialect",
        "_extra",
        "_head",
        "_held",
        "_held_bytes",
        "_last",
        "_lively",
        "_may_retry",
        "_on_accepted",
        "_quiet",
        "_recode",
        "_retry_after",
        "_stored",
        "_waiting",
        "cancelled",
        "done",
        "ended_at",
        "failure",
        "first_at",
        "lacks_model",
        "opened",
        "refused",
        "says_wait",
        "scanner",
        "status",
        "unbegun",
        "usage",
    )

    def __init__(
        self,
        client: Client,
        dialect: Dialect,
        clock: Clock,
        extra: Headers,
        accept_encoding: bytes,
        on_accepted: Callable[[], None],
        may_retry: bool,
        retry_after: int,
        opened: bool = False,
        stored: Stored | None = None,
    ) -> None:
        self._stored = stored
        self._client = client
        self._dialect = dialect
        self._clock = clock
        self._extra = extra
        self._accept_encoding = accept_encoding
        self._on_accepted = on_accepted
        self._may_retry = may_retry
        self._retry_after = retry_after
        self._waiting = False
        """A stream's head is held back until something of the stream comes."""
        self._lively = False
        self._quiet = 0.0
        self.opened = opened
        self.refused = False
        self.unbegun = True
        self.says_wait: float | None = None
        self.lacks_model = False
        self._carrier: Carrier | None = None
        self._head: ResponseHeaders | None = None
        self._held: list[bytes] | None = None
        self._held_bytes = 0
        self._last = b""
        self._decoder: zlib._Decompress | None = None
        self._recode = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.first_at: float | None = None
        self.ended_at: float | None = None
        self.failure: UpstreamFailure | None = None
        self.cancelled = False
        self.scanner: StreamScanner | None = None
        self.usage: Usage | None = None

    @property
    def output_tokens(self) -> int:
        """Generated so far, as far as the answer tells."""
        if self.scanner is not None:
            return self.scanner.tokens
        usage = self.usage
        return usage.output_tokens or 0 if usage is not None else 0

    @property
    def refusal(self) -> Failure | None:
        """Why the backend did not serve, by its own word; None when it served or said nothing."""
        if self.scanner is not None and self.scanner.error is not None:
            return ERROR_EVENT
        return MISSING_MODEL if self.lacks_model else refusal(self.status)

    def carry(self, carrier: Carrier) -> None:
        """The answer will come through `carrier`."""
        self._carrier = carrier
        self._client.source = carrier

    def start_over(self) -> None:
        """The exchange failed before any byte of it: another carrier will take its place."""
        self._carrier = None
        self.failure = None
        self.ended_at = None
        self.done = asyncio.get_running_loop().create_future()

    def cancel(self) -> None:
        """The client left."""
        scanner = self.scanner
        if scanner is not None and scanner.done:
            # It had everything that mattered; the tail is on its way, and does not take long.
            asyncio.get_running_loop().call_later(TAIL, self._cut_tail)
            return
        self.cancelled = True
        self._drop()

    def withdraw(self) -> bool:
        """Drop the exchange, if nothing of its answer has come.

        Returns:
            Whether it was dropped.
        """
        if not self.unbegun:
            return False
        if self._carrier is not None:
            self._carrier.abort()
            self._carrier = None
        self._client.source = None
        return True

    def expire(self) -> None:
        """Fail the exchange, if the content of its stream has not begun."""
        if self._carrier is not None and self.scanner is not None and self.first_at is None:
            self._carrier.abort()
            self._carrier = None
            self.on_failure(UpstreamFailure(FailureKind.FIRST_BYTE_TIMEOUT))

    def _cut_tail(self) -> None:
        if not self.done.done():
            self.ended_at = self._clock()
            self._drop()

    def _drop(self) -> None:
        if self._carrier is not None:
            self._carrier.abort()
        self._settle()

    @property
    def started(self) -> bool:
        """The client has a part of the answer."""
        return self._client.started and not self.opened

    def cut_short(self, error: RequestError) -> None:
        """End the exchange, and the answer if it has begun. Else whoever waits for it answers."""
        if self._carrier is not None:
            self._carrier.abort()
        scanner, client = self.scanner, self._client
        if scanner is not None and scanner.done:
            client.end()  # all that mattered is out
        elif self.started:
            if scanner is not None and scanner.at_boundary and self._plain():
                client.write(
                    self._dialect.error_event(
                        error.status, str(error), type=error.type, code=error.code
                    )
                )
                client.end()
            else:
                client.abort()
        client.source = None

    def ping(self, limit: float) -> None:
        """Called every `TICK` seconds: send a comment after `limit` seconds of silence."""
        if self._lively:
            self._lively = False
            self._quiet = 0.0
            return
        self._quiet += TICK
        if self._quiet < limit or self._client.gone or self.done.done():
            return
        if self.status == 0 or (self._waiting and self._plain()):
            self._comment(COMMENT)
        elif (
            self._client.started
            and self.scanner is not None
            and self.scanner.at_boundary
            and self._plain()
        ):
            self._client.write(COMMENT)
        self._quiet = 0.0

    def _comment(self, data: bytes) -> None:
        """Send comments while nothing of the answer has come."""
        if self.opened:
            self._client.write(data)
        else:
            self.opened = True
            open_stream(self._client, self._extra)

    def _plain(self) -> bool:
        """What the client gets is not compressed, so that something may be added to it."""
        return self._decoder is None or self._recode

    # Sink

    def on_head(self, status: int, headers: Headers, first: bytes) -> None:
        self.status = status
        head = self._head = read_response(headers)
        ok = 200 <= status < 300
        self._lively = True
        failure = refusal(status)
        if failure is BUSY:
            self._note_wait(head)
        if self.opened and not (ok and head.content_type.startswith(self._dialect.stream_type)):
            self.unbegun = False
            self._held = [first]
            if ok:
                self._on_accepted()
            return
        if head.content_type.startswith(self._dialect.stream_type):
            self._begin_stream(head, ok)
            if self._may_retry and ok:
                self._waiting = True
                if first:
                    self._begin(first)
                return
            self.unbegun = False
            data = self._read(first) if first else b""
            if self.failure is None:
                self._start(None, data)
            return
        self.unbegun = False
        if ok:
            self._on_accepted()
        length = head.length
        if failure is not None and self._may_retry and failure.retry is not Retry.NEVER:
            self._held = [first]
            return
        small = (
            head.content_type.startswith(b"application/json")
            if length is None
            else length <= HOLD_BYTES or self._stored is not None
        )
        if small:
            self._held = [first]
            self._held_bytes = len(first)
        else:
            self._keep_last(first)
            self._start(length, first)

    def _keep_last(self, data: bytes) -> None:
        size = len(data)
        self._last = data[-LAST_BYTES:] if size >= LAST_BYTES else (self._last + data)[-LAST_BYTES:]

    def _begin_stream(self, head: ResponseHeaders, ok: bool) -> None:
        if not head.cache_control:
            head.forward.append((b"cache-control", b"no-cache, no-transform"))
        if not head.buffering:
            head.forward.append((b"x-accel-buffering", b"no"))
        if head.content_encoding in _COMPRESSED:
            self._decoder = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, as it says
            if self.opened or not _accepts(self._accept_encoding, head.content_encoding):
                self._recode = True
                head.forward = [pair for pair in head.forward if pair[0] != b"content-encoding"]
        if ok:
            self.scanner = self._dialect.scanner(self._stored)

    def _begin(self, data: bytes) -> None:
        """Something has come of a stream whose head is held back."""
        if self._decoder is None and _comments(data):
            self._comment(data)
            return
        self._waiting = self.unbegun = False
        data = self._read(data)
        scanner = self.scanner
        if scanner is not None and scanner.error is not None and not scanner.first_content:
            self._held = [data]
        elif self.failure is None:
            self._start(None, data)

    def _note_wait(self, head: ResponseHeaders) -> None:
        """See for how long a busy backend wants to be left alone, and tell the client if it does
        not."""
        for name, value in head.forward:
            if name == b"retry-after":
                self.says_wait = retry_after_seconds(value)
                return
        head.forward.append((b"retry-after", b"%d" % self._retry_after))

    def on_body(self, data: bytes) -> None:
        self._lively = True
        held = self._held
        if held is None:
            if self._waiting:
                self._begin(data)
                return
            if self._decoder is not None:
                data = self._read(data)
            elif self.scanner is None:
                self._keep_last(data)
            elif self.scanner.feed(data):
                self._first_content()
            if data:
                self._client.write(data)
            return
        if self.scanner is not None:
            data = self._read(data)
        held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HOLD_BYTES and not self.opened:
            self._may_retry = False
            self._held = None
            body = b"".join(held)
            if self.scanner is not None:
                self._start(None, body)
            else:
                self._keep_last(body)
                self._start(self._length(), body)
        elif self._held_bytes > MAX_IN_STREAM:
            self._held = None
            if self._carrier is not None:
                self._carrier.abort()
            self.ended_at = self._clock()
            failure = UpstreamFailure(FailureKind.PROTOCOL, "too large for an event")
            self._break_off(failure, between=True)

    def _read(self, data: bytes) -> bytes:
        """Look at what came of the body; what is to be passed on of it."""
        plain = data if self._decoder is None else self._decode(self._decoder, data)
        scanner = self.scanner
        if scanner is not None and scanner.feed(plain):
            self._first_content()
        return plain if self._recode else data

    def _first_content(self) -> None:
        self.first_at = self._clock()
        self._on_accepted()

    def on_end(self, *, framed: bool) -> None:
        self.ended_at = self._clock()
        self._carrier = None  # from here on it may carry another answer
        client = self._client
        scanner = self.scanner
        if self._held is not None:
            if self.status == 404:
                self.lacks_model = lacks_model(self._inflated(b"".join(self._held)))
            failure = self.refusal
            if (
                self._may_retry
                and failure is not None
                and failure.retry is not Retry.NEVER
                and self.first_at is None
            ):
                self.refused = True
                self._settle()
                return
            body = b"".join(self._held)
            self._held = None
            if 200 <= self.status < 300:
                self.usage = self._dialect.usage(self._inflated(body))
            self._send(body)
        elif scanner is not None:
            between = scanner.at_boundary
            scanner.finish()
            if not framed and not scanner.done and self._dialect.ends_with_marker:
                # Closing is how this backend ends a body, and also how it dies.
                cut = UpstreamFailure(FailureKind.INCOMPLETE)
                if self._waiting:
                    self.on_failure(cut)
                else:
                    self._break_off(cut, between)
                return
            if self._waiting:
                self._start(None, b"")
        elif 200 <= self.status < 300:
            self.usage = usage_at_end(self._last, self._dialect.usage)
        client.end()
        self._settle()

    def on_failure(self, failure: UpstreamFailure) -> None:
        self.ended_at = self._clock()
        self.failure = failure
        if self._client.started and not self.opened:
            scanner = self.scanner
            self._break_off(failure, scanner is not None and scanner.at_boundary)
        elif not self.done.done():
            self.done.set_exception(failure)

    def pass_on(self) -> None:
        """Send the refusal that was kept back."""
        body = b"".join(self._held or ())
        self._held = None
        self._send(body)
        self._client.end()

    def _send(self, body: bytes) -> None:
        """Send a whole answer that was held back."""
        if self.scanner is not None:
            self._start(None, body)
        elif not self.opened:
            # HEAD: a length and no body
            self._start(len(body) or self._length(), body)
        elif 200 <= self.status < 300:
            self._note_stored(body)
            body = self._inflated(body)  # the stream that it becomes part of is plain
            self._client.write(b"data: %b\n\n" % body.replace(b"\n", b"\ndata: "))
        else:
            # The status is out; what it meant comes as an event.
            self._client.write(
                self._dialect.error_event(
                    self.status,
                    error_message(self._inflated(body))
                    or f"The backend answered with status {self.status}.",
                    type="upstream_error",
                )
            )

    def _break_off(self, failure: UpstreamFailure, between: bool) -> None:
        """End an answer whose head is out, so that it cannot look complete.

        Args:
            between: what was sent ends between two events of a stream.
        """
        self.failure = failure
        row = BROKEN[failure.kind]
        client = self._client
        if between and self._plain():
            client.write(
                self._dialect.error_event(
                    row.status or 502, row.message, type="upstream_error", code=row.name
                )
            )
            client.end()
        else:
            # Half an event, or a body, is out: only a broken connection is an honest end.
            client.abort()
        self._settle()

    def _decode(self, decoder: zlib._Decompress, data: bytes) -> bytes:
        try:
            plain = decoder.decompress(data, MAX_INFLATED)
            if not decoder.unconsumed_tail:
                return plain
        except zlib.error:
            pass
        # What was to be decoded for the client cannot go on; what was only read along can.
        if self._recode and self._carrier is not None:
            self._carrier.abort()
            self.on_failure(UpstreamFailure(FailureKind.PROTOCOL, "undecodable body"))
        self._decoder = self.scanner = None
        return b""

    def _length(self) -> int | None:
        return None if self._head is None else self._head.length

    def _start(self, length: int | None, body: bytes) -> None:
        head = self._head
        assert head is not None
        if self.scanner is None and 200 <= self.status < 300:
            self._note_stored(body)
        if self.opened:
            self.opened = False  # from here on the stream is the backend's
            if body:
                self._client.write(body)
            return
        self._client.start(self.status, head.forward + self._extra, length, body)

    def _note_stored(self, body: bytes) -> None:
        """See under which id the backend keeps an answer that is no stream."""
        if self._stored is not None:
            id = stored_id(self._inflated(body))
            if id is not None:
                self._stored(id)

    def _inflated(self, body: bytes) -> bytes:
        """An answer that is no stream, or its beginning, as it can be read here."""
        head = self._head
        if head is None or head.content_encoding not in _COMPRESSED:
            return body
        try:
            return zlib.decompressobj(wbits=47).decompress(body, MAX_READ)
        except zlib.error:
            return b""

    def _settle(self) -> None:
        self._client.source = None
        if not self.done.done():
            self.done.set_result(None)


def open_stream(client: Client, extra: Headers) -> None:
    """Begin an event stream with a comment, before anything is known of its answer.

    Args:
        extra: headers that the gateway adds.
    """
    client.start(200, [*_STREAM_HEAD, *extra], None, COMMENT)


def _accepts(accept_encoding: bytes, coding: bytes) -> bool:
    offered = accept_encoding.lower()
    return coding.removeprefix(b"x-") in offered or b"*" in offered
