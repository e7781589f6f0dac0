"""What a metric of the gateway is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gateway.telemetry.histogram import Histogram
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sources import IndexView, Sources

Kind = Literal["counter", "gauge", "histogram"]
Merge = Literal["sum", "max", "min", "mean"]
Labels = tuple[str, ...]
Value = float | Histogram


@dataclass(slots=True, frozen=True)
class Scrape:
    """What one scrape sees."""

    metrics: Metrics
    sources: Sources
    index: IndexView


@dataclass(slots=True, frozen=True)
class Family:
    """One metric.

    Attributes:
        read: yields label values, in the order of `labels`, and the value that goes with them.
        merge: what several processes' values of a gauge are together. Counters and histograms are
            added up.
    """

    name: str
    kind: Kind
    labels: Labels
    help: str
    read: Callable[[Scrape], Iterable[tuple[Labels, Value]]]
    merge: Merge | None = None
