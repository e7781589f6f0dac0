"""Numbers as Markdown tables show them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtests.replay.interval import Interval, interval
from loadtests.suite.case import Figures

NOTHING = "-"


@dataclass(slots=True, frozen=True)
class Column:
    """
    Attributes:
        metric: name among the figures.
        factor: from the figure's unit to the heading's.
    """

    heading: str
    metric: str
    factor: float = 1.0
    digits: int = 2

    def cell(self, runs: Sequence[Figures]) -> str:
        values = [run[self.metric] for run in runs if self.metric in run]
        return number(interval(values), self.digits, self.factor)


def number(value: Interval, digits: int, factor: float = 1.0, sign: str = "") -> str:
    """The mean, and half the width of its interval where there are several values.

    Args:
        sign: "+" to have one before what is above 0.
    """
    if math.isnan(value.mean):
        return NOTHING
    text = f"{value.mean * factor:{sign}.{digits}f}"
    return text if math.isnan(value.half) else f"{text} ± {value.half * factor:.{digits}f}"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines; the first column is text, the others are numbers."""
    marks = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(row)} |" for row in (headings, marks, *rows)]
