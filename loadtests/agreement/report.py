"""The two ways side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import pstdev

from loadtests.agreement.figures import Figures, hit_gap, mean, swapped
from loadtests.agreement.live import Run
from loadtests.agreement.setup import Setup
from loadtests.replay.trace import Trace

HIT_BOUND = 0.02
_COLUMNS = (
    ("hit %", "hit", 100, 1),
    ("TTFT mean s", "ttft_mean", 1, 3),
    ("TTFT P95 s", "ttft_p95", 1, 3),
    ("TPOT mean ms", "tpot_mean", 1000, 1),
)


def text(
    trace: Trace, setup: Setup, virtual: Mapping[str, Sequence[Figures]], live: Mapping[str, Run]
) -> str:
    """Per figure a pair of columns: virtual time, then live.

    Args:
        virtual: several runs of each policy.
    """
    means = {policy: mean(runs) for policy, runs in virtual.items()}
    width = max(map(len, virtual)) + 2
    prompt = sum(request.input_tokens for request in trace.requests) / len(trace.requests)
    output = sum(request.output_tokens for request in trace.requests) / len(trace.requests)
    lines = [
        f"{trace.name}: {len(trace.requests)} requests in {trace.span:.0f} s,"
        f" {prompt:.0f} prompt and {output:.0f} output tokens on average",
        f"{setup.engines} engines, {setup.speed:g} times as fast as their profile, with"
        f" {setup.kv_tokens} tokens of KV cache; each figure: virtual time | live",
        f"{'':<{width}}" + "".join(f"{name:>19}" for name, *_ in _COLUMNS) + f"{'failed':>14}",
    ]
    for policy, figures in means.items():
        run = live[policy]
        cells = "".join(
            f"{getattr(figures, name) * factor:>9.{digits}f} |"
            f"{getattr(run.figures, name) * factor:>8.{digits}f}"
            for _, name, factor, digits in _COLUMNS
        )
        lines.append(f"{policy:<{width}}{cells}{figures.failed:>8} |{run.figures.failed:>4}")
    measured = {policy: run.figures for policy, run in live.items()}
    gap, wrong = hit_gap(means, measured), swapped(means, measured)
    apart = max(pstdev(run.hit for run in runs) for runs in virtual.values())
    lag = max(run.lag for run in live.values())
    cpu = max(run.cpu for run in live.values())
    lines += [
        f"largest difference in hit ratio: {100 * gap:.1f} points"
        f" ({'within' if gap <= HIT_BOUND else 'MORE THAN'} {100 * HIT_BOUND:.0f});"
        f" standard deviation among runs in virtual time: {100 * apart:.1f}",
        "ranking: " + (f"DIFFERENT for {'; '.join(wrong)}" if wrong else "the same"),
        f"client late by {1000 * lag:.1f} ms at most in 95 % of the cases; gateway and engines used"
        f" {cpu:.2f} cores",
    ]
    return "\n".join(lines)


def agree(virtual: Mapping[str, Sequence[Figures]], live: Mapping[str, Run]) -> bool:
    """Whether the ranking is the same and the hit ratios are close."""
    measured = {policy: run.figures for policy, run in live.items()}
    means = {policy: mean(runs) for policy, runs in virtual.items()}
    return not swapped(means, measured) and hit_gap(means, measured) <= HIT_BOUND
