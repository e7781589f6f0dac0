"""Files of JSON lines, written beside the event loop."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

logger = logging.getLogger("prefixgate.lines")

STDOUT = "-"
MAX_WAITING = 16_384
"""Lines that wait to be written. What comes when so many wait is dropped and counted."""
FLUSH_SECONDS = 0.5
MAX_MODEL = 200
"""Characters kept of a model's name: clients send what they like."""
_BATCH = 1024

T = TypeVar("T")


class LineLog(Generic[T]):
    """Takes records on the event loop and writes them, as JSON, from a thread of its own.

    Args:
        name: for the thread and for messages.
        path: appended to; `STDOUT` is standard output.
        line: makes of a record what is written; called in the thread.
        max_waiting: bound of the buffer, in lines.

    Attributes:
        dropped: lines lost because the buffer was full or the file could not be written.

    Raises:
        OSError: the file cannot be opened for writing.
    """

    def __init__(
        self, name: str, path: str, line: Callable[[T], object], max_waiting: int = MAX_WAITING
    ) -> None:
        self.dropped = 0
        self._name = name
        self._line = line
        self._path = path
        self._max_waiting = max_waiting
        self._waiting: deque[T] = deque()
        self._file = _open(path)
        self._reopen = False
        self._told_dropped = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._encode = msgspec.json.Encoder().encode

    def write(self, record: T) -> None:
        """Have a record written soon. It must not change any more. Never blocks."""
        if len(self._waiting) < self._max_waiting:
            self._waiting.append(record)
        else:
            self.dropped += 1

    def reopen(self) -> None:
        """Open the path anew before the next line, after a rotation. Safe in a signal handler."""
        self._reopen = True

    def start(self) -> None:
        """Begin to write what waits, every `FLUSH_SECONDS`."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what still waits and close the file."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.flush()
        if self._path != STDOUT:
            os.close(self._file)

    def flush(self) -> None:
        """Write what waits now. Called by the log's own thread once that runs."""
        if self._reopen:
            self._reopen = False
            self._open_again()
        waiting = self._waiting
        while waiting:
            # Taken in batches, so that the lines of a burst are not all in memory twice.
            batch = [waiting.popleft() for _ in range(min(len(waiting), _BATCH))]
            lines = b"".join([self._encode(self._line(record)) + b"\n" for record in batch])
            try:
                _write_all(self._file, lines)
            except OSError as error:
                self.dropped += len(batch)
                logger.error("%s %s cannot be written: %s", self._name, self._path, error.strerror)
                break
        if self.dropped > self._told_dropped:
            logger.warning("%s: %d lines dropped", self._name, self.dropped - self._told_dropped)
            self._told_dropped = self.dropped

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_SECONDS):
            self.flush()

    def _open_again(self) -> None:
        if self._path == STDOUT:
            return
        try:
            fresh = _open(self._path)
        except OSError as error:
            logger.error("%s %s cannot be reopened: %s", self._name, self._path, error.strerror)
            return
        os.close(self._file)
        self._file = fresh


def _open(path: str) -> int:
    if path == STDOUT:
        return 1
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def micro(seconds: float) -> float:
    """Rounded to microseconds: more digits would be noise."""
    return round(seconds, 6)
