"""The metrics of several processes as those of one.

Each family says in `families.py` what becomes of its values; counters and histograms are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from statistics import fmean
from types import MappingProxyType

import msgspec
from prometheus_client.metrics_core import Metric

from gateway.telemetry.collector import Snapshot
from gateway.telemetry.families import FAMILIES
from gateway.telemetry.family import Merge

CUMULATIVE = ("counter", "histogram")
"""Kinds of metrics that only ever grow."""

WORKERS = "prefixgate_workers"

_MERGES: Mapping[Merge, Callable[[Sequence[float]], float]] = MappingProxyType(
    # Exact, so that the order in which processes end does not make a total fall by its last digit.
    {"sum": fsum, "max": max, "min": min, "mean": fmean}
)
_RULES: Mapping[str, Merge] = MappingProxyType(
    {family.name: family.merge for family in FAMILIES if family.merge is not None}
    # Those of the Python client that are no counters: memory and descriptors add up.
    | {"process_start_time_seconds": "min"}
)


class Series(msgspec.Struct, array_like=True, frozen=True):
    """One metric of one process.

    Attributes:
        name: without the `_total` of counters, as the Python client has it.
        samples: name, labels and value of each.
    """

    name: str
    kind: str
    help: str
    samples: list[tuple[str, dict[str, str], float]]

    @property
    def merge(self) -> Callable[[Sequence[float]], float]:
        return _MERGES[_RULES.get(self.name, "sum")]


Reading = list[Series]
"""All metrics of one process, at one moment."""


def reading_of(snapshot: Snapshot) -> Reading:
    return [
        Series(
            metric.name,
            metric.type,
            metric.documentation,
            [(sample.name, sample.labels, sample.value) for sample in metric.samples],
        )
        for metric in snapshot.collect()
    ]


def merged(readings: Iterable[Reading]) -> Reading:
    """One reading of several. What only some of them have is in it too."""
    first: dict[str, Series] = {}
    values: dict[str, dict[tuple[str, tuple[str, ...]], list[float]]] = {}
    labels: dict[tuple[str, tuple[str, ...]], dict[str, str]] = {}
    for reading in readings:
        for series in reading:
            first.setdefault(series.name, series)
            found = values.setdefault(series.name, {})
            for name, named, value in series.samples:
                key = (name, tuple(named.values()))
                labels.setdefault(key, named)
                found.setdefault(key, []).append(value)
    return [
        Series(
            name,
            series.kind,
            series.help,
            [(key[0], labels[key], series.merge(each)) for key, each in values[name].items()],
        )
        for name, series in first.items()
    ]


class Tally:
    """What the workers have counted, those that have ended included: a total never falls."""

    def __init__(self) -> None:
        self._latest: dict[int, Reading] = {}
        self._departed: Reading = []

    def report(self, worker: int, reading: Reading) -> None:
        """Take in a worker's reading in place of its last one."""
        self._latest[worker] = reading

    def gone(self, worker: int) -> None:
        """A worker has ended: what it counted stays, what it had is no more."""
        last = self._latest.pop(worker, None)
        if last is not None:
            totals = [series for series in last if series.kind in CUMULATIVE]
            self._departed = merged([self._departed, totals])

    def snapshot(self, workers: Mapping[str, int]) -> Snapshot:
        """Args:
        workers: how many there are in which state.
        """
        readings = list(self._latest.values())
        self._departed = _without_removed(self._departed, readings)
        together = merged([*readings, self._departed])
        return Snapshot([_metric(series, workers) for series in together])


def _without_removed(departed: Reading, readings: Iterable[Reading]) -> Reading:
    """What is counted for a backend goes with it, as in the processes that run."""
    known = {
        named["backend"]
        for reading in readings
        for series in reading
        for _, named, _ in series.samples
        if "backend" in named
    }
    if not known:
        return departed
    return [
        Series(
            series.name,
            series.kind,
            series.help,
            [
                sample
                for sample in series.samples
                if "backend" not in sample[1] or sample[1]["backend"] in known
            ],
        )
        for series in departed
    ]


def _metric(series: Series, workers: Mapping[str, int]) -> Metric:
    metric = Metric(series.name, series.help, series.kind)
    for name, labels, value in series.samples:
        if name == WORKERS:
            value = workers[labels["state"]]
        metric.add_sample(name, labels, value)
    return metric
