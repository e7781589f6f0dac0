"""Streams of engines' own routes: token counts under names of their own, and lines of JSON."""

from __future__ import annotations

import re

from gateway.http.dialects.usage import Usage, native_usage
from gateway.http.sse import MAX_EVENT, Grammar, StreamScanner

_COUNTS = re.compile(
    rb'"(?:meta_info|timings|details|tokens_predicted|eval_count)"\s*:\s*[{\d]'
).search


class NativeScanner(StreamScanner):
    """Reads along a stream of events whose last ones count tokens as `native_usage` knows them."""

    __slots__ = ("_counts",)

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._counts = b""
        """The last event with counts, not decoded yet: many engines send them with each."""

    @property
    def usage(self) -> Usage | None:
        if self._counts:
            later = native_usage(self._counts)
            self._counts = b""
            if later is not None:
                self._usage = later if self._usage is None else self._usage.updated(later)
        return super().usage

    def _on_event(self, data: bytes, name: bytes) -> None:
        super()._on_event(data, name)
        if _COUNTS(data) is not None:
            self._counts = data
        end = self._grammar.end
        if end is not None and not self.done and end.search(data) is not None:
            # Here the last event may carry content too.
            self.done = True


class LineScanner(NativeScanner):
    """The same for a stream of JSON lines (application/x-ndjson)."""

    __slots__ = ()

    def feed(self, data: bytes) -> bool:
        before = self.first_content
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._keep(line)
            self._end_line()
        self._keep(rest)
        return self.first_content is not before

    def finish(self) -> bool:
        before = self.first_content
        self._end_line()
        return self.first_content is not before

    def _keep(self, piece: bytes) -> None:
        self._size += len(piece)
        # Of a line that is too large only that there is one is remembered.
        self._partial += piece if self._size <= MAX_EVENT else piece[:1]

    def _end_line(self) -> None:
        line, whole = bytes(self._partial), self._size <= MAX_EVENT
        self._partial.clear()
        self._size = 0
        if whole and line.strip():
            self._on_event(line, b"")
