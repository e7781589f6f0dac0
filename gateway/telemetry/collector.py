"""The page that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as BaseCollector

from gateway.telemetry.families import FAMILIES
from gateway.telemetry.family import Family, Scrape
from gateway.telemetry.histogram import Histogram
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.sources import Sources

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Collector(BaseCollector):
    """Reads all metrics of `FAMILIES`, at the moment they are asked for."""

    def __init__(self, metrics: Metrics, sources: Sources) -> None:
        self._metrics = metrics
        self._sources = sources

    def collect(self) -> Iterator[Metric]:
        scrape = Scrape(self._metrics, self._sources, self._sources.index())
        return (_read(family, scrape) for family in FAMILIES)

    def describe(self) -> Iterator[Metric]:
        """The same families without samples: registering must not read what is not built yet."""
        return (_KINDS[family.kind](family.name, family.help) for family in FAMILIES)


class MetricsPage:
    """All metrics of one gateway, with those of the process and the garbage collector.

    It has a registry of its own, so that several gateways can live in one process.
    """

    def __init__(self, metrics: Metrics, sources: Sources) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(Collector(metrics, sources))
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def read(self) -> Snapshot:
        """All values as of now; to be called on the event loop, where they do not change."""
        return Snapshot(list(self._registry.collect()))


class Snapshot(BaseCollector):
    """The values of one moment."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families

    def render(self) -> bytes:
        """The page, in the format that `CONTENT_TYPE` names.

        It takes four times as long as the reading; with hundreds of backends that is work for a
        thread, in which it is safe.
        """
        return generate_latest(self)


_KINDS = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


def _read(family: Family, scrape: Scrape) -> Metric:
    if family.kind == "histogram":
        histograms = HistogramMetricFamily(family.name, family.help, labels=family.labels)
        for labels, value in family.read(scrape):
            assert isinstance(value, Histogram)
            histograms.add_metric(labels, list(value.cumulative()), value.sum)
        return histograms
    into = GaugeMetricFamily if family.kind == "gauge" else CounterMetricFamily
    numbers = into(family.name, family.help, labels=family.labels)
    for labels, value in family.read(scrape):
        assert not isinstance(value, Histogram)
        numbers.add_metric(labels, value)
    return numbers
