"""`python -m loadtests.replicas`: are several gateways as good as one?

Sessions in virtual time, unless asked for one of the others.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.config import ConfigError
from loadtests.process import ProcessError
from loadtests.replicas import faults, live, placing, propagation, report, virtual
from loadtests.suite import document


def main(arguments: list[str] | None = None) -> int:
    """
    Returns:
        0 when they are, 1 when they are not, 2 when it could not be found out.
    """
    options = _parser().parse_args(arguments)
    try:
        text, missed = _measure(options)
        print(text)
        if options.page is not None:
            document.put(options.page, options.part, text)
    except (ConfigError, ProcessError) as error:
        print(f"replicas: {error}", file=sys.stderr)
        return 2
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def _measure(options: argparse.Namespace) -> tuple[str, list[str]]:
    """The table, and what is not as it should be."""
    match options.part:
        case "live":
            played = live.run(options.gateways, options.redis)
            return live.table(played), live.missed(played)
        case "faults":
            endured = faults.run(_faults(options.fault), options.repeats)
            return faults.table(endured), faults.missed(endured)
        case "placing":
            placed = placing.run()
            return placing.table(placed), placing.missed(placed)
        case "propagation":
            found = propagation.run()
            return propagation.table(found), propagation.missed(found)
        case _:
            rows = [
                row
                for workload in virtual.workloads(options.traces)
                for row in virtual.run(workload, seeds=options.seeds, processes=options.jobs)
            ]
            return report.table(rows), report.missed(rows)


def _faults(names: list[str]) -> list[faults.Fault]:
    known = {fault.name: fault for fault in faults.FAULTS}
    for name in names:
        if name not in known:
            raise ConfigError(f"--fault {name}: expected one of {', '.join(known)}")
    return [known[name] for name in names or known]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.replicas", description=__doc__)
    parser.set_defaults(part="virtual")
    what = parser.add_mutually_exclusive_group()
    for name, told in (
        ("live", "sessions through real gateways, with and without Redis"),
        ("placing", "new prefixes that two place at once, in virtual time"),
        ("faults", "Redis in trouble under a steady load"),
        ("propagation", "the way between gateways, memory, restarts, a death"),
    ):
        what.add_argument(f"--{name}", dest="part", action="store_const", const=name, help=told)
    add = parser.add_argument
    add("--traces", type=Path, metavar="DIR", help="of Mooncake's conversation trace")
    add("--seeds", type=int, default=4, metavar="N", help="runs of each (default %(default)s)")
    add("--jobs", type=int, default=1, metavar="N", help="processes (default %(default)s)")
    add("--redis", metavar="URL", help="for --live; started when not given")
    add(
        "--gateways",
        type=int,
        nargs="+",
        default=live.REPLICAS,
        metavar="N",
        help="that are real; the first is what the others are held against (default 1 2 4 8)",
    )
    add("--fault", action="append", default=[], metavar="NAME", help="only this; repeatable")
    add(
        "--repeats",
        type=int,
        default=faults.REPEATS,
        metavar="N",
        help="of each fault (default %(default)s)",
    )
    add("--page", type=Path, metavar="FILE", help="write the table there too, between its marks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
