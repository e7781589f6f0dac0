"""CPU time and memory of a process with all its descendants, from Linux's /proc."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """A process and its descendants that are alive now."""
    found = [pid]
    try:
        for task in (_PROC / f"{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += tree(int(child))
    except (FileNotFoundError, ProcessLookupError):
        return found  # it ended meanwhile
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time that the processes have used so far; the ended ones count nothing."""
    ticks = 0
    for pid in pids:
        try:
            stat = (_PROC / f"{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = stat.rsplit(")", 1)[1].split()  # what precedes is the name, which may hold spaces
        ticks += int(fields[11]) + int(fields[12])
    return ticks / _TICKS


def resident_mb(pids: list[int]) -> float:
    kilobytes = 0
    for pid in pids:
        try:
            lines = (_PROC / f"{pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
    return kilobytes / 1024
