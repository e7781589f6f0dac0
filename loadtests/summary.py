"""Figures of many requests, and the table that sets several runs side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtests.sample import Sample

ALL = "all"
QUANTILES = (0.50, 0.95, 0.99)


@dataclass(slots=True, frozen=True)
class Percentiles:
    """In seconds; NaN when nothing was measured."""

    p50: float
    p95: float
    p99: float


@dataclass(slots=True, frozen=True)
class Summary:
    """
    Attributes:
        requests, failed: how many were sent, and how many of those failed.
        hit_ratio: prompt tokens that the engines had cached, of all prompt tokens.
        output_rate: output tokens per second of the run.
    """

    requests: int
    failed: int
    hit_ratio: float
    ttft: Percentiles
    tpot: Percentiles
    output_rate: float


def percentile(values: Sequence[float], quantile: float) -> float:
    """Linear between the two nearest ranks (numpy's default); NaN for no values.

    Args:
        values: sorted.
        quantile: 0 to 1.
    """
    if not values:
        return math.nan
    position = quantile * (len(values) - 1)
    below = math.floor(position)
    above = min(below + 1, len(values) - 1)
    return values[below] + (values[above] - values[below]) * (position - below)


def summarise(samples: Iterable[Sample], seconds: float) -> Summary:
    """
    Args:
        seconds: how long the run took.
    """
    samples = list(samples)
    good = [sample for sample in samples if sample.error is None]
    prompt = sum(sample.prompt_tokens for sample in good)
    return Summary(
        requests=len(samples),
        failed=len(samples) - len(good),
        hit_ratio=sum(sample.cached_tokens for sample in good) / prompt if prompt else math.nan,
        ttft=_percentiles(sample.ttft for sample in good),
        tpot=_percentiles(sample.tpot for sample in good),
        output_rate=sum(sample.output_tokens for sample in good) / seconds,
    )


def by_kind(samples: Iterable[Sample], seconds: float) -> dict[str, Summary]:
    """One summary per kind, in alphabetical order, and last that of `ALL`."""
    samples = list(samples)
    kinds = sorted({sample.kind for sample in samples})
    parts = {
        str(kind): summarise((s for s in samples if s.kind is kind), seconds) for kind in kinds
    }
    return parts | {ALL: summarise(samples, seconds)}


def table(runs: Mapping[str, Mapping[str, Summary]]) -> str:
    """The runs side by side, kind by kind.

    Args:
        runs: by the run's name, its `by_kind` summaries.
    """
    head = [
        f"{'':<11}{'':<17}{'':>9}{'prefix':>9}{'TTFT ms':>10}{'':>16}{'TPOT ms':>11}{'':>16}"
        f"{'output':>10}",
        f"{'class':<11}{'policy':<17}{'requests':>9}{'hits':>9}"
        f"{'P50':>10}{'P95':>8}{'P99':>8}{'P50':>11}{'P95':>8}{'P99':>8}{'tokens/s':>10}",
    ]
    lines = [*(line.rstrip() for line in head), "-" * len(head[1])]
    for kind in dict.fromkeys(kind for parts in runs.values() for kind in parts):
        shown = kind
        for name, parts in runs.items():
            if kind in parts:
                lines.append(f"{shown:<11}{name:<17}{_row(parts[kind])}")
                shown = ""
    return "\n".join(lines)


def _row(summary: Summary) -> str:
    ttft = [1000 * value for value in (summary.ttft.p50, summary.ttft.p95, summary.ttft.p99)]
    tpot = [1000 * value for value in (summary.tpot.p50, summary.tpot.p95, summary.tpot.p99)]
    return (
        f"{summary.requests:>9}{summary.hit_ratio:>9.1%}"
        f"{ttft[0]:>10.0f}{ttft[1]:>8.0f}{ttft[2]:>8.0f}"
        f"{tpot[0]:>11.1f}{tpot[1]:>8.1f}{tpot[2]:>8.1f}{summary.output_rate:>10.0f}"
    )


def _percentiles(values: Iterable[float | None]) -> Percentiles:
    ranked = sorted(value for value in values if value is not None)
    return Percentiles(*(percentile(ranked, quantile) for quantile in QUANTILES))
