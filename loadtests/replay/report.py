"""A comparison as tables for people, and as JSON with all that it takes to repeat it."""

from __future__ import annotations

import math
import platform

import msgspec

from gateway.version import VERSION
from loadtests.replay import capacity
from loadtests.replay.comparison import Comparison, Plan, Row
from loadtests.replay.interval import Interval
from loadtests.replay.metrics import MAX_WARMUP, WARMUP_SHARE
from loadtests.replay.player import Mode
from loadtests.replay.trace import Trace

# heading, metric, factor, digits
_COLUMNS = (
    ("SLO %", "slo", 100, 1),
    ("hit %", "hit", 100, 1),
    ("oracle", "hit_share", 1, 2),
    ("TTFT", "ttft_mean", 1, 2),
    ("P50", "ttft_p50", 1, 2),
    ("P95", "ttft_p95", 1, 2),
    ("P99 s", "ttft_p99", 1, 1),
    ("slow99", "slowdown_p99", 1, 1),
    ("TPOT50", "tpot_p50", 1000, 0),
    ("P95", "tpot_p95", 1000, 0),
    ("P99 ms", "tpot_p99", 1000, 0),
    ("imbal.", "imbalance", 1, 2),
    ("refused", "refused", 1, 0),
)
_SIDE_BY_SIDE = (
    ("SLO %", "slo", 100, 1),
    ("hit %", "hit", 100, 1),
    ("TTFT mean", "ttft_mean", 1, 2),
    ("slow99", "slowdown_p99", 1, 1),
    ("TPOT95 ms", "tpot_p95", 1000, 0),
)
_CELL = 8


def text(comparison: Comparison, plan: Plan) -> str:
    """The tables."""
    trace = comparison.traces[0]
    lines = [_headline(trace, plan), *(f"note: {note}" for note in trace.notes)]
    width = max(len(arm.name) for arm in plan.arms) + 2
    for mode in plan.modes:
        for load in plan.loads:
            rows = [row for row in comparison.rows if (row.mode, row.load) == (mode, load)]
            ceiling = rows[0].figures
            heads = "".join(f"{name:>{_CELL}}" for name, *_ in _COLUMNS)
            lines += (
                "",
                f"{mode} loop, load x{load:g} ({load * trace.rate:.2f} requests/s); hit ratio of"
                f" one shared cache {ceiling['oracle_hit'].mean:.1%}, of an endless one"
                f" {ceiling['infinite_hit'].mean:.1%}",
                " " * width + heads + f"{'+- SLO':>8}",
            )
            lines += [_line(row, width) for row in rows]
    if len(plan.modes) > 1:
        lines += _side_by_side(comparison, plan, width)
    if comparison.capacities:
        lines += _capacities(comparison, width)
    return "\n".join(lines)


def json(comparison: Comparison, plan: Plan) -> bytes:
    """All figures, with the parameters that they depend on."""
    first = comparison.traces[0]
    document = {
        "versions": {"prefixgate": VERSION, "python": platform.python_version()},
        "trace": {
            "name": first.name,
            "sha256": sorted({trace.digest for trace in comparison.traces}),
            "requests": [len(trace.requests) for trace in comparison.traces],
            "seconds": [trace.span for trace in comparison.traces],
            "rate": [trace.rate for trace in comparison.traces],
            "block_tokens": first.block_tokens,
            "batch_seconds": first.window,
            "token_ratio": first.token_ratio,
            "notes": first.notes,
        },
        "seeds": list(plan.seeds),
        "engines": plan.fleet,
        "slo": plan.slo,
        "warm_up": {"share": WARMUP_SHARE, "max_seconds": MAX_WARMUP},
        "capacity_at_slo": capacity.TARGET,
        "policies": {
            arm.name: {
                "policy": arm.policy_type.name,
                "params": arm.params,
                "scheduling": arm.scheduling,
                "knowledge": arm.knowledge,
            }
            for arm in plan.arms
        },
        "rows": comparison.rows,
        "capacities": comparison.capacities,
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def _headline(trace: Trace, plan: Plan) -> str:
    speeds = set(plan.fleet.speeds)
    unequal = f" of speeds {plan.fleet.speeds}" if len(speeds) > 1 else ""
    return (
        f"{trace.name}: {len(trace.requests)} requests in {trace.span:.0f} s, sha256"
        f" {trace.digest[:12]}; {len(plan.fleet.speeds)} engines{unequal}; seeds"
        f" {', '.join(map(str, plan.seeds))}"
    )


def _line(row: Row, width: int) -> str:
    cells = "".join(
        _cell(_mean(row, metric) * factor, digits) for _, metric, factor, digits in _COLUMNS
    )
    return f"{row.arm:<{width}}{cells}{_half(row.figures['slo'], 100, 1):>8}".rstrip()


def _side_by_side(comparison: Comparison, plan: Plan, width: int) -> list[str]:
    """Open and closed loop in one line, because they can rank policies differently."""
    rows = {(row.mode, row.load, row.arm): row for row in comparison.rows}
    lines: list[str] = []
    for load in plan.loads:
        lines += (
            "",
            f"load x{load:g}: open loop | closed loop",
            " " * width + "".join(f"{name:>{2 * _CELL + 3}}" for name, *_ in _SIDE_BY_SIDE),
        )
        for arm in plan.arms:
            pair = [rows[mode, load, arm.name] for mode in (Mode.OPEN, Mode.CLOSED)]
            cells = "".join(
                " |".join(_cell(_mean(row, metric) * factor, digits) for row in pair) + " "
                for _, metric, factor, digits in _SIDE_BY_SIDE
            )
            lines.append(f"{arm.name:<{width}}{cells}")
    return lines


def _capacities(comparison: Comparison, width: int) -> list[str]:
    lines = ["", f"highest load with {capacity.TARGET:.0%} of the requests within the SLO"]
    lines += (
        f"{found.arm:<{width}}{found.mode:<8}{found.rate.mean:>8.3f} requests/s"
        f"{_half(found.rate, 1, 3):>9}   x{found.load.mean:.3f}"
        for found in comparison.capacities
    )
    return lines


def _mean(row: Row, metric: str) -> float:
    return row.figures[metric].mean if metric in row.figures else math.nan


def _cell(value: float, digits: int) -> str:
    text = "-" if math.isnan(value) else f"{value:.{digits}f}"
    return f"{text:>{_CELL}}"


def _half(value: Interval, factor: float, digits: int) -> str:
    """Half the width of the interval; nothing when a single seed gave none."""
    return "" if math.isnan(value.half) else f"+-{value.half * factor:.{digits}f}"
