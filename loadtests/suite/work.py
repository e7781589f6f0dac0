"""Cases carried out, with an eye on how long it will take."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean
from time import monotonic

from loadtests.suite.case import Case, Done
from loadtests.suite.store import Store

EVERY = 15.0
"""Seconds between two lines about the progress."""

Say = Callable[[str], None]


def carry_out(cases: Sequence[Case], store: Store, processes: int, say: Say | None = None) -> None:
    """Run the cases that are not in the store, and put them there one by one.

    Args:
        say: told how far it is; standard error by default.
    """
    left = [case for case in cases if store.get(case) is None]
    if not left:
        return
    progress = Progress(left, store, processes, say or _to_stderr)
    if processes == 1:
        for case in left:
            progress.note(case())
        return
    with ProcessPoolExecutor(min(processes, len(left))) as executor:
        for done in executor.map(_call, left):
            progress.note(done)


def _call(case: Case) -> Done:
    return case()


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class Progress:
    """Expects of a case the CPU time of those that were most like it."""

    def __init__(self, left: Sequence[Case], store: Store, processes: int, say: Say) -> None:
        self._left = {case.key: case for case in left}
        self._total = len(left)
        self._store = store
        self._processes = processes
        self._say = say
        self._costs: dict[tuple[str, ...], list[float]] = {}
        for done in store:
            self._learn(done)
        self._spent = 0.0
        self._began = self._said = monotonic()

    def note(self, done: Done) -> None:
        self._store.add(done)
        self._left.pop(done.key, None)
        self._learn(done)
        self._spent += done.seconds
        now = monotonic()
        if not self._left or now - self._said >= EVERY:
            self._said = now
            count = self._total - len(self._left)
            # What a second of CPU took in this run: others may use the machine too.
            pace = (now - self._began) / self._spent if self._spent else 1 / self._processes
            self._say(
                f"{count} of {self._total} ({done.kind}), {self._spent:.0f} s of CPU;"
                f" {self.remaining() * pace / 60:.1f} minutes left"
            )

    def remaining(self) -> float:
        """Seconds of CPU."""
        return sum(self._expected(case) for case in self._left.values())

    def _learn(self, done: Done) -> None:
        for kind in _kinds(done.kind, done.workload, done.policy):
            self._costs.setdefault(kind, []).append(done.seconds)

    def _expected(self, case: Case) -> float:
        policy = "" if case.arm is None else case.arm.name
        for kind in _kinds(case.kind, case.workload, policy):
            if kind in self._costs:
                return fmean(self._costs[kind])
        return 3.0


def _kinds(kind: str, workload: str, policy: str) -> Iterable[tuple[str, ...]]:
    """From the most like it to the least."""
    return (kind, workload, policy), (kind, workload), (kind,)
