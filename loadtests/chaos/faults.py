"""What can be wrong with an engine."""

from __future__ import annotations

from enum import StrEnum


class Fault(StrEnum):
    """One at a time for each engine. The value is what tables call it."""

    # of the process
    KILL = "killed (SIGKILL), back after a while"
    RESTART = "killed and restarted at once, cold"
    FREEZE = "frozen (SIGSTOP)"
    # of its probes
    SICK = "health 503 while it serves"
    # of its answers
    HANG = "accepts and never answers"
    SLOW = "slow"
    BUSY = "429"
    BUSY_LATER = "429 with Retry-After"
    UNAVAILABLE = "503"
    UNAVAILABLE_LATER = "503 with Retry-After"
    BROKEN = "500 at once"
    CLOSE = "closed before the answer"
    CUT_HEAD = "cut inside the head"
    CUT = "cut in mid-stream or mid-body"
    SILENT = "silent in mid-stream or mid-body"
    JUNK_HEAD = "junk in place of a head"
    JUNK = "junk in mid-stream or mid-body"
    ERROR_EVENT = "error event in mid-stream"


OF_PROCESSES = frozenset({Fault.KILL, Fault.RESTART, Fault.FREEZE})
REFUSALS = {
    Fault.BUSY: 429,
    Fault.BUSY_LATER: 429,
    Fault.UNAVAILABLE: 503,
    Fault.UNAVAILABLE_LATER: 503,
    Fault.BROKEN: 500,
}
"""The status of those that are an answer."""
RETRY_AFTER = 1
"""Seconds, where an engine names them."""
