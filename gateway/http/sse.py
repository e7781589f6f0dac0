"""What must be known of an event stream, found by scanning its bytes as they are relayed.

The scanner is fed the payload in whatever pieces it arrives and changes nothing. It follows the
event stream grammar (WHATWG HTML, 9.2.6) and looks for byte patterns inside each event's data.
Only an event that may carry a usage or an error is decoded. The patterns cannot be fooled by
generated text: inside a JSON string a quote is always escaped, so a quoted name followed by a colon
is a member, and a raw line break never occurs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.http.dialects.usage import Usage, read_usage

MAX_EVENT = 1024 * 1024
"""Bytes. A larger event is relayed like any other, but not looked into."""
MAX_ERROR_TYPE = 64

_DONE = b"[DONE]"
_USAGE = re.compile(rb'"usage"\s*:(?!\s*null)').search
_NOTE = re.compile(rb'"usage"\s*:(?!\s*null)|"error"(?!\s*:\s*null)').search
_LF = 0x0A
_QUOTE_OR_LINE_END = b'"\n'


@dataclass(slots=True, frozen=True)
class Grammar:
    """How one API's events look.

    Attributes:
        content: is found in the data of an event that carries generated content.
        marker: the usual spelling of `content`; unless a quote follows it, `content` matches too.
        end: is found in the data of the event that ends a stream. `[DONE]` ends one in any API.
    """

    content: re.Pattern[bytes]
    marker: bytes
    end: re.Pattern[bytes] | None = None


def _strings(*members: str) -> re.Pattern[bytes]:
    """Matches any of these members with a string that is not empty."""
    return re.compile(rb'(?:%b)"\s*:\s*"[^"\n]' % "|".join(members).encode())


CHAT = Grammar(_strings("content", '"reasoning', '"refusal', '"arguments', '"name'), b'content":"')
COMPLETIONS = Grammar(_strings('"text'), b'"text":"')
RESPONSES = Grammar(
    re.compile(rb'"response\.[\w.]+\.delta"'),
    b'"response.output_text.delta"',
    re.compile(rb'"response\.(?:completed|incomplete|failed|cancelled)"'),
)
MESSAGES = Grammar(
    re.compile(rb'"content_block_delta"'),
    b'"content_block_delta"',
    re.compile(rb'"message_stop"'),
)
UNKNOWN = Grammar(re.compile(rb'\A(?!.*"error"(?!\s*:\s*null))\s*\S', re.DOTALL), b"\r")
"""Of a route the gateway does not know: every event that names no error counts as content. There is
no usual spelling; a CR never is in a line."""


class _Response(msgspec.Struct, gc=False):
    usage: Any = None
    error: Any = None


class _Event(msgspec.Struct, gc=False):
    """The members that accounting looks at; the others are skipped without being built."""

    type: Any = None
    object: Any = None
    code: Any = None
    usage: Any = None
    error: Any = None
    message: Any = None
    delta: Any = None
    response: _Response | None = None


_decode = msgspec.json.Decoder(_Event).decode


class StreamScanner:
    """Reads along one event stream.

    Attributes:
        first_content: an event with generated content was seen. Comments, pings, role-only deltas
            and stream heads are none.
        content_events: how many of them.
        error: type of the first error event, never its text; None before any.
        done: the stream's own end was seen.
    """

    __slots__ = (
        "_between",
        "_data",
        "_grammar",
        "_marker",
        "_name",
        "_partial",
        "_pending",
        "_size",
        "_skip_newline",
        "_totals",
        "_usage",
        "content_events",
        "done",
        "error",
        "first_content",
    )

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._marker = grammar.marker
        self.first_content = False
        self.content_events = 0
        self.error: str | None = None
        self.done = False
        self._between = True
        """Nothing of an event is held back: the next byte begins one."""
        self._partial = bytearray()
        """A line whose end has not come."""
        self._data: list[bytes] = []
        self._name = b""
        self._pending = False
        """The event has a line that is no comment."""
        self._size = 0
        """Bytes of the event's lines so far."""
        self._skip_newline = False
        """A CR came last; an LF now belongs to it."""
        self._usage: Usage | None = None
        self._totals = b""
        """The last event with content and a usage, not decoded yet."""

    @property
    def usage(self) -> Usage | None:
        """The counts reported so far; None before any."""
        totals = self._totals
        if totals:
            self._totals = b""
            event = _read_event(totals)
            if event is not None:
                self._on_usage(event)
        return self._usage

    def count(self) -> int:
        """Events with content so far: about as many as tokens."""
        return self.content_events

    @property
    def tokens(self) -> int:
        """Tokens generated: as reported, else the number of events with content."""
        usage = self.usage
        if usage is None or usage.output_tokens is None:
            return self.content_events
        return usage.output_tokens

    @property
    def at_boundary(self) -> bool:
        """An event may be appended here; elsewhere a blank line must come first."""
        return not self._partial and not self._pending

    def feed(self, data: bytes) -> bool:
        """Take the next bytes. True exactly when the first content was among them."""
        before = self.first_content
        size = len(data)
        if self._between and size <= MAX_EVENT and data.find(b"\r") < 0:
            # Nearly always a read is whole events, each of one line, or of two with its name.
            marker = self._marker
            at = 0
            while at < size:
                start = at
                if not data.startswith(b"data:", at):
                    start = data.find(b"\n", at) + 1
                    if (
                        not start
                        or not data.startswith(b"event:", at)
                        or not data.startswith(b"data:", start)
                    ):
                        break
                stop = data.find(b"\n", start)
                if stop < 0 or stop + 1 == size or data[stop + 1] != _LF:
                    break
                found = data.rfind(marker, start, stop)
                if found >= 0 and data[found + len(marker)] not in _QUOTE_OR_LINE_END:
                    self.content_events += 1
                    self.first_content = True
                    usage = data.rfind(b'"usage"', start, stop)
                    if usage >= 0 and (
                        not data.startswith(b":null", usage + 7)
                        or data.find(b'"usage"', start) < usage
                    ):
                        self._note_usage(data[start + 5 : stop])
                else:
                    self._on_event(data[start + 5 : stop], data[at + 6 : start].strip())
                at = stop + 2
            else:
                return self.first_content is not before
            if at:
                data = data[at:]
        self._read_lines(data)
        return self.first_content is not before

    def finish(self) -> bool:
        """The stream has ended; an event without its blank line still counts.

        Returns:
            True when the first content was in that event.
        """
        before = self.first_content
        if self._partial:
            self._on_line(bytes(self._partial))
            self._partial.clear()
        self._on_line(b"")
        self._between = True
        self._skip_newline = False
        return self.first_content is not before

    def _read_lines(self, data: bytes) -> None:
        """Any bytes, whatever their line ends and wherever they were split."""
        if self._skip_newline and data:
            self._skip_newline = False
            if data.startswith(b"\n"):
                data = data[1:]
        if data:
            partial = self._partial
            lines = data.splitlines()
            rest = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
            for line in lines:
                self._size += len(line)
                if partial:
                    partial += line
                    line = bytes(partial)
                    partial.clear()
                self._on_line(line)
            if rest:
                self._size += len(rest)
                if self._size <= MAX_EVENT:
                    partial += rest
                else:
                    # Of the line, all that still matters is how it begins.
                    partial += rest[:1]
                    del partial[1:]
            self._skip_newline = data.endswith(b"\r")
        self._between = not self._size and not self._skip_newline

    def _on_line(self, line: bytes) -> None:
        """A whole line without its end, already counted in the event's size."""
        data = self._data
        if not line:
            if data:
                self._on_event(data[0] if len(data) == 1 else b"\n".join(data), self._name)
                data.clear()
            self._name = b""
            self._pending = False
            self._size = 0
            return
        if line[0] != 0x3A:  # a colon begins a comment
            self._pending = True
        if self._size > MAX_EVENT:
            data.clear()
        elif line.startswith(b"data:"):
            data.append(line[5:])
        elif line.startswith(b"event:"):
            self._name = line[6:].strip()

    def _on_event(self, data: bytes, name: bytes) -> None:
        """One event. What carries generated content is no error, whatever else is in it."""
        grammar = self._grammar
        if grammar.content.search(data) is not None and data.strip() != _DONE:
            self.content_events += 1
            self.first_content = True
            self._note_usage(data)
        elif name == b"error":
            if self.error is None:
                self.error = _error_type(data)
        elif grammar.end is not None and grammar.end.search(data) is not None:
            self.done = True
            self._on_note(data)
        elif _NOTE(data) is not None:
            self._on_note(data)
        elif data.strip() == _DONE:
            self.done = True

    def _note_usage(self, data: bytes) -> None:
        """An event with content. Engines may send running totals with each of these: the first may
        tell what the others do not, and of those only the last is worth decoding."""
        if _USAGE(data) is None:
            return
        if self._usage is not None:
            self._totals = data
            return
        event = _read_event(data)
        if event is not None:
            self._on_usage(event)

    def _on_note(self, data: bytes) -> None:
        """An event that may report a usage or an error."""
        event = _read_event(data)
        if event is not None:
            self._on_usage(event)
            if self.error is None:
                self.error = _error_in(event)

    def _on_usage(self, event: _Event) -> None:
        response = event.response
        later = read_usage(event.usage)
        if later is None and response is not None:
            later = read_usage(response.usage)
        if later is None and isinstance(event.delta, dict):
            later = read_usage(event.delta.get("usage"))
        if later is None and isinstance(event.message, dict):
            later = read_usage(event.message.get("usage"))
            if later is not None:
                # The output count at the start of a message is none of what is to come.
                later = Usage(later.prompt_tokens, None, later.cached_tokens)
        if later is not None:
            earlier = self.usage
            self._usage = later if earlier is None else earlier.updated(later)


def _read_event(data: bytes) -> _Event | None:
    try:
        return _decode(data)
    except (ValueError, RecursionError):
        return None


def _error_type(data: bytes) -> str:
    event = _read_event(data)
    return (event and _error_in(event)) or "error"


def _error_in(event: _Event) -> str | None:
    """The type of the error that an event reports; None if it reports none."""
    error = event.error
    if not error and event.response is not None:
        error = event.response.error
    if error:
        named = (error.get("type"), error.get("code")) if isinstance(error, dict) else ()
    elif event.type == "error" or event.object == "error":
        named = (event.type, event.code)
    elif event.type == "response.failed":
        named = ()
    else:
        return None
    for name in named:
        if isinstance(name, str) and name and name != "error":
            return name[:MAX_ERROR_TYPE]
    return "error"
