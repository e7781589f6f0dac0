"""`python -m loadtests.replicas`: are several gateways as good as one?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.config import ConfigError
from loadtests.process import ProcessError
from loadtests.replicas import report, virtual
from loadtests.suite import document


def main(arguments: list[str] | None = None) -> int:
    """
    Returns:
        0 when they are, 1 when they are not, 2 when it could not be found out.
    """
    options = _parser().parse_args(arguments)
    try:
        text, missed = _virtual(options)
        print(text)
        if options.page is not None:
            document.put(options.page, "virtual", text)
    except (ConfigError, ProcessError) as error:
        print(f"replicas: {error}", file=sys.stderr)
        return 2
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def _virtual(options: argparse.Namespace) -> tuple[str, list[str]]:
    rows = [
        row
        for workload in virtual.workloads(options.traces)
        for row in virtual.run(workload, seeds=options.seeds, processes=options.jobs)
    ]
    return report.table(rows), report.missed(rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.replicas", description=__doc__)
    add = parser.add_argument
    add("--traces", type=Path, metavar="DIR", help="of Mooncake's conversation trace")
    add("--seeds", type=int, default=1, metavar="N", help="runs of each (default 1)")
    add("--jobs", type=int, default=1, metavar="N", help="processes (default 1)")
    add("--page", type=Path, metavar="FILE", help="write the table there too, between its marks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
