"""What engines did, written down at once: what a killed process knew would be lost with it."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from loadtests.chaos.faults import Fault


class Step(StrEnum):
    GOT = "got"
    """A request has come in whole."""
    PART = "part"
    """A part of an answer that is no stream has gone out, and nothing more will."""
    BEGUN = "begun"
    """The first token of a stream has gone out, or all of any other answer."""
    DONE = "done"
    """All of its answer has."""


class Journal:
    """One engine's; its lines are `seconds request incarnation what`."""

    def __init__(self, path: Path, incarnation: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._incarnation = incarnation

    def note(self, request: str, what: Step | Fault) -> None:
        line = f"{time.monotonic():.6f} {request} {self._incarnation} {what.name}\n"
        os.write(self._file, line.encode())


@dataclass(slots=True)
class Run:
    """One request at one engine.

    Attributes:
        began: seconds of `time.monotonic`, which is one clock for all processes.
        steps: what became of it there, in order.
    """

    began: float
    incarnation: str
    steps: list[Step]


@dataclass(slots=True, frozen=True)
class Deeds:
    """What all engines did.

    Attributes:
        runs: by request, in the order in which they began.
        faults: how many answers each fault has spoilt.
    """

    runs: dict[str, list[Run]]
    faults: Counter[Fault]


def read(paths: Iterable[Path]) -> Deeds:
    runs: dict[str, list[Run]] = defaultdict(list)
    faults: Counter[Fault] = Counter()
    for path in paths:
        for line in path.read_text().splitlines():
            at, request, incarnation, what = line.split()
            if what in Fault.__members__:
                faults[Fault[what]] += 1
                continue
            if what == Step.GOT.name:
                runs[request].append(Run(float(at), incarnation, []))
            here = [run for run in runs[request] if run.incarnation == incarnation]
            here[-1].steps.append(Step[what])
    for each in runs.values():
        each.sort(key=lambda run: run.began)
    return Deeds(dict(runs), faults)
