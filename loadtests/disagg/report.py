"""Tables of what was compared, and where ours is not as good as it is to be."""

from __future__ import annotations

from collections.abc import Sequence

from loadtests.disagg.comparison import AHEAD, BEHIND
from loadtests.disagg.rows import Row

_BEST_AHEAD = "conversation"
"""The trace on which ours is to be ahead."""


def table(rows: Sequence[Row]) -> str:
    """For each trace, pace and network the load that each way takes, or the share of the requests
    within the SLO at one load, in Markdown."""
    lines = []
    for trace, pace, gbps in _settings(rows):
        of = _of(rows, trace, pace, gbps)
        network = "" if gbps is None else f", {gbps:g} Gbit/s"
        figure = "requests/s" if of[0].share is None else "within the SLO"
        lines += [
            f"{trace}, {pace * 1000:g} ms per token{network}",
            "",
            f"| way | prefill:decode | chunk | {figure} | remote | MB moved per request |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for row in of:
            way = row.way
            engines = f"{way.prefill}:{8 - way.prefill}" if way.prefill else "all mixed"
            rule = way.name if way.prefill else "never"
            lines.append(f"| {rule} | {engines} | {way.chunk} | {_figures(row)} |")
        lines.append("")
    return "\n".join(lines)


def missed(rows: Sequence[Row]) -> list[str]:
    """Where ours takes less than it is to."""
    lines = []
    for trace, pace, gbps in _settings(rows):
        of = _of(rows, trace, pace, gbps)
        ours = [row.rate for row in of if _is_ours(row)]
        others = [row.rate for row in of if not _is_ours(row)]
        if not ours or not others:
            continue
        wanted = AHEAD if trace.startswith(_BEST_AHEAD) else BEHIND
        ratio = max(ours) / max(others) if max(others) else float("inf")
        if ratio < wanted:
            lines.append(
                f"{trace}, {pace * 1000:g} ms, {gbps:g} Gbit/s: ours takes {ratio:.3f} times the"
                f" load of the best other, wanted {wanted:g}"
            )
        for row in of:
            same = [other.rate for other in of if other.way.prefill == row.way.prefill]
            if _is_ours(row) and row.rate < BEHIND * max(same):
                lines.append(
                    f"{trace}, {pace * 1000:g} ms, {gbps:g} Gbit/s: with {row.way.prefill} prefill"
                    f" engines a fixed rule takes {max(same):.2f} requests/s, ours {row.rate:.2f}"
                )
    return lines


def _figures(row: Row) -> str:
    if row.at_most:
        return f"< {row.rate:.2f} | |"
    figure = f"{row.rate:.2f}" if row.share is None else f"{row.share:.1%}"
    return f"{figure} | {row.remote:.0%} | {row.moved / 1e6:.0f}"


def _is_ours(row: Row) -> bool:
    return bool(row.way.prefill) and row.way.threshold is None


def _settings(rows: Sequence[Row]) -> list[tuple[str, float, float | None]]:
    """Without a network where nothing is ever handed over."""
    wired = any(row.wire is not None for row in rows)
    return list(
        dict.fromkeys(
            (row.trace, row.pace, None if row.wire is None else row.wire.gbps)
            for row in rows
            if row.wire is not None or not wired
        )
    )


def _of(rows: Sequence[Row], trace: str, pace: float, gbps: float | None) -> list[Row]:
    """Those of one setting, and those for which the network does not matter."""
    return [
        row
        for row in rows
        if (row.trace, row.pace) == (trace, pace) and (row.wire is None or row.wire.gbps == gbps)
    ]
