"""How far a run has come: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

_WIDTH = 32
_LINE_SECONDS = 5.0
_BAR_SECONDS = 0.1


class Progress:
    """
    Args:
        name: what is running.
        total: steps until it is done.
        out: where to write; whether that is a terminal decides the form.
    """

    def __init__(self, name: str, total: int, out: TextIO) -> None:
        self._name = name
        self._total = total
        self._out = out
        self._bar = out.isatty()
        self._done = 0
        self._start = time.monotonic()
        self._next = self._start

    def step(self) -> None:
        self._done += 1
        now = time.monotonic()
        if now >= self._next or self._done == self._total:
            self._next = now + (_BAR_SECONDS if self._bar else _LINE_SECONDS)
            self._show(now - self._start)

    def close(self) -> None:
        if self._bar:
            self._out.write("\n")
            self._out.flush()

    def _show(self, seconds: float) -> None:
        text = f"{self._name:<16} {self._done:>4}/{self._total} requests  {seconds:5.1f} s"
        if self._bar:
            filled = _WIDTH * self._done // self._total
            self._out.write(f"\r[{'#' * filled}{'.' * (_WIDTH - filled)}] {text}")
        else:
            self._out.write(f"{text}\n")
        self._out.flush()
