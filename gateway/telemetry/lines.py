"""Files of JSON lines, written beside the event loop."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

logger = logging.getLogger("prefixgate.lines")

STDOUT = "-"
MAX_WAITING = 16_384
"""Lines that wait to be written. What comes when so many wait is dropped and counted."""
FLUSH_SECONDS = 0.5
CLOSE_SECONDS = 2.0
MAX_MODEL = 200
"""Characters kept of a model's name: clients send what they like."""
_BATCH = 1024

T = TypeVar("T")


class LineLog(Generic[T]):
    """Takes records on the event loop and writes them, as JSON, from a thread of its own.

    The file is opened, and made if it must be, by `open` or with the first line: whoever only wants
    to know whether it could be leaves nothing behind.

    Args:
        name: for the thread and for messages.
        path: appended to; `STDOUT` is standard output.
        line: makes of a record what is written; called in the thread.
        max_waiting: bound of the buffer, in lines.

    Attributes:
        path: as given.
        dropped: lines lost because the buffer was full or the file could not be written.

    Raises:
        OSError: the file could not be opened for writing.
    """

    def __init__(
        self, name: str, path: str, line: Callable[[T], object], max_waiting: int = MAX_WAITING
    ) -> None:
        self.dropped = 0
        self._name = name
        self._line = line
        self.path = path
        self._max_waiting = max_waiting
        self._waiting: deque[T] = deque()
        _check(path)
        self._file: int | None = None
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

    def open(self) -> None:
        """Open the file, unless it is open.

        Raises:
            OSError: it cannot be opened for writing.
        """
        self._opened()

    def start(self) -> None:
        """Begin to write what waits, every `FLUSH_SECONDS`."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what still waits and close the file. Of a pipe that nobody reads, what does not fit
        within `CLOSE_SECONDS` is lost."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
            if self._thread.is_alive():
                logger.error("%s %s does not take its last lines", self._name, self.path)
                return
        self.flush()
        if self._file is not None and self.path != STDOUT:
            os.close(self._file)
        self._file = None

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
                _write_all(self._opened(), lines)
            except OSError as error:
                self.dropped += len(batch)
                logger.error("%s %s cannot be written: %s", self._name, self.path, error.strerror)
                break
        if self.dropped > self._told_dropped:
            logger.warning("%s: %d lines dropped", self._name, self.dropped - self._told_dropped)
            self._told_dropped = self.dropped

    def _opened(self) -> int:
        if self._file is None:
            self._file = _open(self.path)
        return self._file

    def _run(self) -> None:
        while not self._stop.wait(FLUSH_SECONDS):
            self.flush()
        self.flush()

    def _open_again(self) -> None:
        if self.path == STDOUT or self._file is None:
            return
        try:
            fresh = _open(self.path)
        except OSError as error:
            logger.error("%s %s cannot be reopened: %s", self._name, self.path, error.strerror)
            return
        os.close(self._file)
        self._file = fresh


def _open(path: str) -> int:
    if path == STDOUT:
        return 1
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)


def _check(path: str) -> None:
    """Whether `_open` would work, as far as that can be told without doing it.

    Raises:
        OSError: it would not.
    """
    if path == STDOUT:
        return
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if target.exists():
        allowed = os.access(target, os.W_OK)
    else:
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        allowed = os.access(target.parent, os.W_OK | os.X_OK)
    if not allowed:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    with _undivided(file):
        while view:
            view = view[os.write(file, view) :]


@contextmanager
def _undivided(file: int) -> Iterator[None]:
    """Several processes may write into one pipe, which takes no more than 4 KiB in one piece."""
    locked = stat.S_ISFIFO(os.fstat(file).st_mode)
    if locked:
        fcntl.lockf(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if locked:
            fcntl.lockf(file, fcntl.LOCK_UN)


def micro(seconds: float) -> float:
    """Rounded to microseconds: more digits would be noise."""
    return round(seconds, 6)
