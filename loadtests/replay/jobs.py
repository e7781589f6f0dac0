"""Pieces of work that do not need each other, spread over processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

T = TypeVar("T")

Job = Callable[[], T]
"""Picklable, when there is more than one process."""


def run(jobs: Sequence[Job[T]], processes: int, what: str) -> list[T]:
    """The jobs' results, in their order. How far it is, is told on standard error.

    Args:
        what: is being done, for people.
    """
    if processes == 1:
        return _told((job() for job in jobs), len(jobs), what)
    with ProcessPoolExecutor(min(processes, max(1, len(jobs)))) as executor:
        return _told(executor.map(_call, jobs), len(jobs), what)


def _call(job: Job[T]) -> T:
    return job()


def _told(results: Iterator[T], total: int, what: str) -> list[T]:
    done: list[T] = []
    shown = sys.stderr.isatty()
    for result in results:
        done.append(result)
        if shown:
            print(f"\r{what}: {len(done)} of {total}", end="", file=sys.stderr, flush=True)
    if shown and done:
        print(file=sys.stderr)
    return done
