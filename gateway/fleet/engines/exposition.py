"""Single metrics out of a page in Prometheus' text format.

A page of a large engine has thousands of lines, of which a handful is wanted several times a
minute: they are looked for by name, and the others never parsed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean

from gateway.fleet.engines.numbers import count, share, total

MAX_SERIES = 1024
"""Series of one metric that are looked at: more than any engine has ranks."""
MAX_LINE = 65_536

_SAMPLE = re.compile(rb"(?:\{(.*)\})?[ \t]+(\S{1,64})(?:[ \t]+-?\d+)?[ \t\r]*$")
_LABEL = re.compile(r'(\w{1,128})="((?:[^"\\]|\\.)*)"')

_APART = ("engine", "dp_rank", "priority")
"""Labels by which series are parts of a whole: ranks, and who waits. Series that differ in any
other label (such as the tensor-parallel rank) say the same thing several times."""


class Exposition:
    """Args:
    page: its bytes, whatever they are.
    """

    def __init__(self, page: bytes) -> None:
        self._page = b"\n" + page

    def series(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """Labels and value of each sample of that name that can be read."""
        page, start = self._page, b"\n" + name.encode()
        at = page.find(start)
        for _ in range(MAX_SERIES):
            if at < 0:
                return
            begin = at + len(start)
            end = page.find(b"\n", begin)
            line = page[begin : end if end >= 0 else len(page)][:MAX_LINE]
            sample = _SAMPLE.match(line)
            if sample is not None and (value := _number(sample[2])) is not None:
                yield dict(_LABEL.findall((sample[1] or b"").decode("utf-8", "replace"))), value
            at = page.find(start, begin)

    def count(self, *names: str) -> int | None:
        """Requests or tokens, over all ranks, under the first of these names that is there."""
        parts = self._parts(names)
        return count(sum(parts)) if parts else None

    def share(self, *names: str) -> float | None:
        """The mean over all ranks of what each says of itself, 0 to 1."""
        parts = [part for part in map(share, self._parts(names)) if part is not None]
        return fmean(parts) if parts else None

    def work(self, *names: str) -> float | None:
        """A counter, over all ranks."""
        return total(self._parts(names))

    @property
    def started(self) -> float | None:
        """When the process started, unix seconds."""
        for _, value in self.series("process_start_time_seconds"):
            return value if value > 0.0 else None
        return None

    def _parts(self, names: tuple[str, ...]) -> list[float]:
        for name in names:
            parts: dict[tuple[str | None, ...], float] = {}
            for labels, value in self.series(name):
                if value >= 0.0:
                    part = tuple(map(labels.get, _APART))
                    parts[part] = max(value, parts.get(part, 0.0))
            if parts:
                return list(parts.values())
        return []


def _number(text: bytes) -> float | None:
    """None for what is no number; NaN, which is none either, too."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value else None
