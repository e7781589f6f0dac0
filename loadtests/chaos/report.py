"""A run as a table."""

from __future__ import annotations

from loadtests.chaos.faults import OF_PROCESSES, Fault
from loadtests.chaos.run import Result


def table(result: Result) -> str:
    """Markdown."""
    plan, metrics = result.plan, result.metrics
    rows = [
        ("requests", f"{result.requests} over {plan.engines} engines, seed {plan.seed}"),
        ("duration", f"{result.seconds:.0f} s, {plan.requests / result.seconds:.0f} requests/s"),
        ("clients that left", f"{result.left} ({result.left / result.requests:.1%})"),
        *((f"outcome `{name}`", f"{count}") for name, count in result.outcomes.most_common()),
        *((f"fault: {fault}", _times(fault, result.faults[fault])) for fault in Fault),
        ("retries", f"{metrics.total('prefixgate_retries_total'):.0f}"),
        ("redials", f"{metrics.total('prefixgate_upstream_redials_total'):.0f}"),
        ("ejections", f"{metrics.total('prefixgate_backend_ejections_total'):.0f}"),
        (
            "from the last fault until all engines served",
            "never" if result.recovered is None else f"{result.recovered:.1f} s",
        ),
        ("errors seen that a retry could have hidden", f"{len(result.hidden)}"),
        ("event loop late, P99", f"under {result.lag * 1000:g} ms"),
        (
            "memory at the start, after a third, at the end",
            ", ".join(f"{size / (1 << 20):.0f} MiB" for size in result.rss),
        ),
        ("processor time of the gateway", f"{result.cpu:.0f} s"),
        ("violations", "; ".join(result.violations.lines()) or "none"),
    ]
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)])


def _times(fault: Fault, count: int) -> str:
    return f"{count} processes" if fault in OF_PROCESSES else f"{count}"
