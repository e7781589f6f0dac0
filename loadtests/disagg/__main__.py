"""`python -m loadtests.disagg`: do handovers pay, and does the gateway know when?

The highest load at which 90 % of the requests are within the SLO, or with --at the share of them at
one load, on eight simulated engines in virtual time: mixed engines that never hand over, fixed
rules, and the gateway's own.
"""

from __future__ import annotations

import argparse
import sys
from math import inf
from pathlib import Path

from gateway.config import ConfigError
from loadtests.disagg import comparison, report, window
from loadtests.disagg.ways import Wire
from loadtests.replay import source
from loadtests.suite import document

TRACES = ("conversation", "synthetic")
MADE = "gen:chat?rate=9&seconds=900"
"""Conversations, where no traces are given."""
ALL_GBPS = (10.0, 25.0, 100.0, 400.0)
QUICK_GBPS = (10.0, 100.0)
QUICK_SECONDS = 600.0
"""With them all is done in about two hours of CPU."""


def main(arguments: list[str] | None = None) -> int:
    """
    Returns:
        0 when ours takes the load that it is to take, or none was searched for, 1 when not, 2 when
        it could not be found out.
    """
    options = _parser().parse_args(arguments)
    try:
        _require_positive("--seconds", options.seconds)
        _require_positive("--at", options.at)
        sources = [MADE]
        if options.traces is not None:
            sources = [str(options.traces / f"{name}_trace.jsonl.gz") for name in options.trace]
        full = options.full
        seconds = options.seconds or (None if full else QUICK_SECONDS)
        rows = comparison.compare(
            [
                window.cut(trace, begin, seconds)
                for trace in [source.find(text)(options.seed) for text in sources]
                for begin in options.begin
            ],
            [
                Wire(gbps, options.layer_wise)
                for gbps in options.gbps or (ALL_GBPS if full else QUICK_GBPS)
            ],
            [milliseconds / 1000 for milliseconds in options.tpot],
            options.ratio,
            options.jobs,
            exact=full or len(options.begin) > 1,
            only=options.way,
            at=options.at,
        )
        text = report.table(rows)
        print(text)
        if options.page is not None:
            document.put(options.page, "replay", text)
    except ConfigError as error:
        print(f"disagg: {error}", file=sys.stderr)
        return 2
    missed = report.missed(rows) if options.at is None else []
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def _require_positive(option: str, value: float | None) -> None:
    if value is not None and not 0 < value < inf:
        raise ConfigError(f"{option} {value:g}: expected a number above 0")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.disagg", description=__doc__)
    add = parser.add_argument
    add("--traces", type=Path, metavar="DIR", help="of Mooncake's traces")
    add("--trace", nargs="+", default=TRACES, choices=TRACES, help="which of them (default both)")
    add(
        "--full",
        action="store_true",
        help="the whole traces, four networks, and a search for each way: more than a day of CPU",
    )
    add(
        "--begin",
        type=float,
        nargs="+",
        default=[0.0],
        metavar="S",
        help="seconds into each trace where a window begins (default 0); with several, means over"
        " them, and a search for each way",
    )
    add("--seconds", type=float, help=f"of each window (default {QUICK_SECONDS:g})")
    add(
        "--at",
        type=float,
        metavar="LOAD",
        help="no search: the share within the SLO at so many times each window's own rate",
    )
    add(
        "--way",
        nargs="+",
        default=[],
        choices=comparison.options(),
        help="which of them (default all)",
    )
    add(
        "--gbps",
        type=float,
        nargs="+",
        help=f"(default {QUICK_GBPS[0]:g} and {QUICK_GBPS[1]:g}, with --full 10, 25, 100 and 400)",
    )
    add("--tpot", type=float, nargs="+", default=[50.0, 100.0], metavar="MS")
    add(
        "--ratio",
        type=int,
        nargs="+",
        default=comparison.RATIOS,
        choices=range(1, comparison.ENGINES),
        metavar="N",
        help="prefill engines of the eight (default 2 to 6)",
    )
    add("--layer-wise", action="store_true", help="layers are sent as they are computed")
    add("--seed", type=int, default=1, metavar="N")
    add("--jobs", type=int, default=1, metavar="N", help="processes (default %(default)s)")
    add("--page", type=Path, metavar="FILE", help="write the tables there too, between its marks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
