"""How a fake backend answers one request: the knobs, each with the value of a healthy engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from threading import Event


class Framing(StrEnum):
    """How the end of an answer's body is told."""

    AUTO = "auto"
    """Chunked for event streams, Content-Length for anything else."""
    CHUNKED = "chunked"
    LENGTH = "length"
    CLOSE = "close"
    """HTTP/1.1 without either header: the body ends with the connection."""
    HTTP10 = "http10"
    """The same, as HTTP/1.0."""
    BOTH = "both"
    """Chunked, and a Content-Length that is the size of the first piece."""


class UsageStyle(StrEnum):
    """Where a stream tells its token counts."""

    NONE = "none"
    SEPARATE = "separate"
    """An event of its own after the last choice."""
    LAST = "last"
    """On the event with the finish reason."""
    EVERY = "every"
    """Running totals on each event."""
    MIDDLE = "middle"
    """Once, half-way."""


class Cut(StrEnum):
    """How a connection is broken."""

    FIN = "fin"
    RST = "rst"


class Inside(StrEnum):
    """Where in an event a connection is broken."""

    EVENT = "event"
    """Half of it is sent, as a whole chunk."""
    CHUNK = "chunk"
    """It is sent as one chunk, of which half goes out."""


Segment = bytes | float | Cut
"""Bytes to send, seconds to wait, or the end of the connection."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What to answer. Change some of it with `dataclasses.replace` or `FakeBackend.behave`.

    Attributes:
        status: HTTP status; from 400 on the body is `body` or an error object.
        headers: further header lines.
        body: the whole body, in place of one made for the route. A 204 has none.
        ttft: seconds before the first event, or before a JSON answer.
        until: holds that back until it is set, for tests in which something has to happen before.
        early_head: send a stream's head at once, before `ttft`, as vLLM does.
        itl: seconds between two events.
        n_tokens: content deltas of a stream, and the completion tokens reported.
        texts: the content deltas themselves, in place of `n_tokens` made-up ones.
        reasoning: reasoning deltas before the content.
        tool_arguments: pieces of one tool call's arguments, in place of content.
        response_id: of an answer of /v1/responses.
        usage: where a stream tells its token counts.
        hang: read the request and never answer.
        cut_after: break the connection after so many whole events (or, of an answer that is not
            a stream, after so many bytes).
        cut_inside: send part of the next event before that.
        cut: how the connection is broken.
        tail: seconds between the last event and the end of the body, or, of an answer that is not
            a stream, before its last piece.
        error_after: send an error event in place of the stream's next one, after so many events;
            then the stream ends, as vLLM's do.
        silent_after: fall silent after so many events, with the connection open.
        comments: send a comment line every so many seconds while silent.
        prompt_tokens: the count reported; made up from the body's size when None.
        cached_tokens: of those, the ones reported as cached.
        segment: bytes a TCP segment carries; 1 for one byte at a time.
        framing: how the body's end is told.
        style: rewrites each event's bytes (line endings, spaces, comments).
        gzip: compress the body, with a flush after each event.
        informational: 1xx answers to send first.
        trailers: trailer fields after a chunked body.
        pieces: send a JSON body in so many chunks.
        script: raw bytes, waits and cuts to send in place of an answer, after `ttft` and `until`.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    ttft: float = 0.0
    until: Event | None = None
    early_head: bool = False
    itl: float = 0.0
    n_tokens: int = 5
    texts: tuple[str, ...] | None = None
    reasoning: int = 0
    tool_arguments: tuple[str, ...] = ()
    response_id: str = "resp_1"
    usage: UsageStyle = UsageStyle.SEPARATE
    hang: bool = False
    cut_after: int | None = None
    cut_inside: Inside | None = None
    cut: Cut = Cut.FIN
    tail: float = 0.0
    error_after: int | None = None
    silent_after: int | None = None
    comments: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    segment: int | None = None
    framing: Framing = Framing.AUTO
    style: Callable[[bytes], bytes] | None = None
    gzip: bool = False
    informational: tuple[int, ...] = ()
    trailers: tuple[tuple[str, str], ...] = ()
    pieces: int = 1
    script: tuple[Segment, ...] | None = None

    @property
    def content(self) -> tuple[str, ...]:
        if self.texts is not None:
            return self.texts
        return tuple(f"t{number} " for number in range(self.n_tokens))
