"""Which metrics exist, with which labels, as Prometheus stores them."""

from __future__ import annotations

from gateway.telemetry.families import FAMILIES
from tests.conf.promql import read

TARGET = {"instance", "job"}
"""Labels that Prometheus adds to everything it scrapes."""


def series() -> dict[str, set[str]]:
    """Labels by name, for every series that the gateway has or Prometheus makes of it."""
    known = {
        "up": TARGET,
        "process_cpu_seconds_total": TARGET,
        "process_resident_memory_bytes": TARGET,
    }
    for family in FAMILIES:
        labels = TARGET | set(family.labels)
        if family.kind == "histogram":
            known[f"{family.name}_bucket"] = labels | {"le"}
            known[f"{family.name}_sum"] = known[f"{family.name}_count"] = labels
        else:
            known[family.name] = labels
    return known


def problems(expression: str) -> list[str]:
    """What an expression asks for and is not there."""
    known = series()
    usage = read(expression)
    found = [f"no metric {name}" for name, _ in usage.metrics if name not in known]
    found += [
        f"{name} has no label {label}"
        for name, labels in usage.metrics
        for label in labels - known.get(name, labels)
    ]
    found += [
        f"{name} cannot be grouped by {label}"
        for labels, names in usage.grouped
        for name in names
        for label in labels - known.get(name, labels)
    ]
    if not usage.metrics:
        found.append("uses no metric")
    return found


def labels_left(expression: str) -> set[str]:
    """Labels that the expression's result has."""
    usage = read(expression)
    if usage.grouped:
        return set.intersection(*(labels for labels, _ in usage.grouped))
    known = series()
    return set.intersection(*(known[name] for name, _ in usage.metrics))
