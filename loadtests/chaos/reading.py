"""Reading an answer for what must never be in it: pieces of two, a piece twice, a hole."""

from __future__ import annotations

from typing import Any

import msgspec

from loadtests.chaos.answers import ENGINE_ERROR, token


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)
    message: _Delta = msgspec.field(default_factory=_Delta)


class _Error(msgspec.Struct):
    type: str | None = None
    code: Any = None


class _Document(msgspec.Struct):
    """An event, a whole answer or an error."""

    id: str = ""
    object: str = ""
    choices: list[_Choice] = []
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Document).decode


class Reading:
    """What one answer has brought so far, from its payload in pieces.

    Args:
        name: of the request that it must be to.

    Attributes:
        incarnation: of the engine that the tokens are of; None before any.
        tokens: how many, in order, all of one incarnation.
        begun: something came that is an answer's and no error.
        error: the first error, of an event or of a body.
        done: `[DONE]` came.
        flaw: the first thing that must not be; None as long as there was none.
    """

    __slots__ = ("_name", "_rest", "begun", "done", "error", "flaw", "incarnation", "tokens")

    def __init__(self, name: str) -> None:
        self._name = name
        self.incarnation: str | None = None
        self._rest = b""
        self.tokens = 0
        self.begun = False
        self.error: _Error | None = None
        self.done = False
        self.flaw: str | None = None

    @property
    def at_boundary(self) -> bool:
        """What came of a stream ends between two events."""
        return not self._rest

    @property
    def error_is_ours(self) -> bool:
        """The gateway made the error, not an engine."""
        return self.error is not None and self.error.type != ENGINE_ERROR

    def stream(self, data: bytes) -> None:
        """The next bytes of an event stream."""
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._event(line[5:].strip())
                elif line and not line.startswith(b":"):
                    self._blame(f"a line that no engine sent: {line[:60]!r}")

    def _event(self, data: bytes) -> None:
        if self.done:
            self._blame("an event after [DONE]")
        if self.error_is_ours:
            self._blame("an event after the gateway's error")
        if data == b"[DONE]":
            self.done = True
            return
        self._document(data)

    def whole(self, data: bytes) -> None:
        """All of an answer that is no stream."""
        self._document(data)

    def _document(self, data: bytes) -> None:
        try:
            document = _decode(data)
        except msgspec.DecodeError as error:
            self._blame(f"not JSON as engines send it ({error}): {data[:60]!r}")
            return
        if document.error is not None:
            self.error = self.error or document.error
            return
        if self.error is not None:
            self._blame("content after an error")
        self.begun = True
        if document.object == "list":
            self._text(document.id)
            return
        if document.id != self._name:
            self._blame(f"an answer to {document.id[:60]!r}")
        for choice in document.choices:
            self._text(choice.delta.content or choice.message.content or "")

    def _text(self, text: str) -> None:
        for piece in text.split():
            if self.incarnation is None:
                self.incarnation = piece.split(":")[1] if piece.count(":") == 2 else ""
            if f"{piece} " != token(self._name, self.incarnation, self.tokens):
                self._blame(f"token {piece[:60]!r} after {self.tokens} of {self.incarnation}")
            self.tokens += 1

    def _blame(self, flaw: str) -> None:
        self.flaw = self.flaw or flaw
