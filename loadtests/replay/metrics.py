"""The figures of one run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from gateway.types import WorkClass
from loadtests.replay.result import Result
from loadtests.summary import percentile

MAX_WARMUP = 300.0
WARMUP_SHARE = 0.1
CURVE_STEP = 60.0
"""Seconds per point of a run's curve."""


@dataclass(slots=True, frozen=True)
class Slo:
    """
    Attributes:
        ttft, ttft_factor: a first token is due after the larger of so many seconds and so many
            times the prompt's prefill alone on an idle engine.
        tpot: seconds per further token.
        floor: seconds that a first token is granted before it counts as slow, for the slowdown.
    """

    ttft: float = 2.0
    ttft_factor: float = 3.0
    tpot: float = 0.1
    floor: float = 0.2

    def due(self, result: Result) -> float:
        """Seconds from its arrival to when a first token is late."""
        return max(self.ttft, self.ttft_factor * result.cold_seconds)

    def met(self, result: Result) -> bool:
        ttft = result.ttft
        if ttft is None or ttft > self.due(result):
            return False
        tpot = result.tpot
        return tpot is None or tpot <= self.tpot

    def slowdown(self, result: Result) -> float | None:
        ttft = result.ttft
        return None if ttft is None else ttft / max(self.floor, result.cold_seconds)


def warm_up(span: float) -> float:
    """Seconds at the begin of which nothing is measured, while caches fill."""
    return min(MAX_WARMUP, WARMUP_SHARE * span)


def measured(results: Iterable[Result], span: float) -> list[Result]:
    """Those that arrived after the warm-up.

    Args:
        span: seconds over which all arrive.
    """
    begin = warm_up(span)
    return [result for result in results if result.arrival >= begin]


def metrics(results: Sequence[Result], engines: int, slo: Slo) -> dict[str, float]:
    """Numbers by name, in seconds, tokens, requests or shares; NaN where nothing was measured.

    Args:
        results: the measured ones.
        engines: how many there are.
    """
    served = [result for result in results if result.first is not None]
    prompt = sum(result.input_tokens for result in served)
    work = [0.0] * engines
    for result in served:
        work[result.engine] += result.prefill_seconds
    errors = [result.predicted_tokens - result.cached_tokens for result in served]
    return {
        "requests": len(results),
        "refused": len(results) - len(served),
        "slo": _mean(slo.met(result) for result in results),
        "hit": _ratio(sum(result.cached_tokens for result in served), prompt),
        **_distribution("ttft", (result.ttft for result in served)),
        **_distribution("tpot", (result.tpot for result in served)),
        "slowdown_p99": _percentile((slo.slowdown(result) for result in served), 0.99),
        "imbalance": _ratio(max(work), fmean(work)),
        "work_cv": _ratio(pstdev(work), fmean(work)),
        "predicted_bias": _mean(errors),
        "predicted_mae": _mean(map(abs, errors)),
        **{f"queue_p99_{name}": _queue_p99(served, name) for name in WorkClass},
    }


def curve(results: Iterable[Result]) -> list[dict[str, float]]:
    """How it went along, by time of arrival."""
    minutes: dict[int, list[float]] = {}
    for result in results:
        waited = minutes.setdefault(int(result.arrival // CURVE_STEP), [])
        if result.ttft is not None:
            waited.append(result.ttft)
    return [
        {
            "from": minute * CURVE_STEP,
            "served": len(minutes[minute]),
            "ttft_p99": percentile(sorted(minutes[minute]), 0.99),
        }
        for minute in sorted(minutes)
    ]


def _queue_p99(served: Iterable[Result], work_class: WorkClass) -> float:
    waits = (result.queue_seconds for result in served if result.work_class is work_class)
    return _percentile(waits, 0.99)


def _distribution(name: str, values: Iterable[float | None]) -> dict[str, float]:
    ranked = sorted(value for value in values if value is not None)
    return {
        f"{name}_mean": _mean(ranked),
        f"{name}_p50": percentile(ranked, 0.5),
        f"{name}_p95": percentile(ranked, 0.95),
        f"{name}_p99": percentile(ranked, 0.99),
    }


def _percentile(values: Iterable[float | None], quantile: float) -> float:
    return percentile(sorted(value for value in values if value is not None), quantile)


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return fmean(values) if values else math.nan


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
