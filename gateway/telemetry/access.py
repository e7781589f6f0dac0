"""The access log: one JSON line for each request that has ended."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque

import msgspec

from gateway.telemetry.record import RequestRecord

logger = logging.getLogger("prefixgate.access")

STDOUT = "-"
MAX_WAITING = 16_384
"""Lines that wait to be written. What comes when so many wait is dropped and counted."""
FLUSH_SECONDS = 0.5
MAX_MODEL = 200
"""Characters kept of a model's name: clients send what they like."""
_BATCH = 1024


class AccessLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line; the members mean what they mean in `RequestRecord`."""

    time: float
    """When the request arrived, seconds since 1970."""
    id: str
    model: str
    dialect: str
    stream: bool
    status: int
    outcome: str | None
    backend: str | None
    work_class: str | None
    reason: str | None
    refusal: str | None
    disconnect_phase: str | None
    prompt_tokens: int
    matched_tokens: int
    uncached_tokens: int
    output_tokens: int
    reported_prompt_tokens: int | None
    reported_cached_tokens: int | None
    queue_seconds: float
    ttft: float | None
    tpot: float | None
    duration: float


class AccessLog:
    """Takes records on the event loop and writes them from a thread of its own.

    Args:
        path: appended to; `STDOUT` is standard output.
        max_waiting: bound of the buffer, in lines.

    Attributes:
        dropped: lines lost because the buffer was full or the file could not be written.

    Raises:
        OSError: the file cannot be opened for writing.
    """

    def __init__(self, path: str, max_waiting: int = MAX_WAITING) -> None:
        self.dropped = 0
        self._path = path
        self._max_waiting = max_waiting
        self._waiting: deque[RequestRecord] = deque()
        self._file = _open(path)
        self._reopen = False
        self._told_dropped = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._encode = msgspec.json.Encoder().encode

    def write(self, record: RequestRecord) -> None:
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
        self._thread = threading.Thread(target=self._run, name="access-log", daemon=True)
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
            lines = b"".join([self._encode(_line(record)) + b"\n" for record in batch])
            try:
                _write_all(self._file, lines)
            except OSError as error:
                self.dropped += len(batch)
                logger.error("access log %s cannot be written: %s", self._path, error.strerror)
                break
        if self.dropped > self._told_dropped:
            logger.warning("access log: %d lines dropped", self.dropped - self._told_dropped)
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
            logger.error("access log %s cannot be reopened: %s", self._path, error.strerror)
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


def _line(record: RequestRecord) -> AccessLine:
    return AccessLine(
        time=round(record.arrived_unix, 6),
        id=record.id,
        model=record.model[:MAX_MODEL],
        dialect=record.dialect,
        stream=record.stream,
        status=record.status,
        outcome=record.outcome,
        backend=record.backend or None,
        work_class=record.work_class,
        reason=record.reason,
        refusal=record.refusal,
        disconnect_phase=record.disconnect_phase,
        prompt_tokens=record.prompt_tokens,
        matched_tokens=round(record.matched_tokens),
        uncached_tokens=record.uncached_tokens,
        output_tokens=record.output_tokens,
        reported_prompt_tokens=record.reported_prompt_tokens,
        reported_cached_tokens=record.reported_cached_tokens,
        queue_seconds=_micro(record.queue_seconds),
        ttft=None if record.ttft is None else _micro(record.ttft),
        tpot=None if record.tpot is None else _micro(record.tpot),
        duration=_micro(record.duration),
    )


def _micro(seconds: float) -> float:
    """Rounded to microseconds: more digits would be noise."""
    return round(seconds, 6)
