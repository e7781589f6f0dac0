"""One ablation, or all: a question, the runs that answer it, and a table.

python -m loadtests.suite.ablation theta --traces DIR
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.config import ConfigError
from loadtests.suite import document, workload
from loadtests.suite.ablation_report import report
from loadtests.suite.ablations import ABLATIONS
from loadtests.suite.comparison import Comparison
from loadtests.suite.store import Store
from loadtests.suite.version import ROOT, current
from loadtests.suite.work import carry_out

ALL = "all"
WORKLOADS = ("conversation", "agents")
GENERATED_WORKLOADS = ("agents", "documents")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.suite.ablation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:10} {each.question}" for name, each in ABLATIONS.items()),
    )
    add = parser.add_argument
    add("name", choices=[*ABLATIONS, ALL], metavar="NAME", help=f"one of those below, or {ALL}")
    add("--traces", type=Path, metavar="DIR", help="of the recorded traces")
    add("--workload", action="append", default=[], metavar="NAME", help="only this; repeatable")
    add("--seeds", type=int, default=3, metavar="N", help="(default 3)")
    add("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    add("--results", type=Path, default=ROOT / "build" / "ablations.jsonl", metavar="FILE")
    add("--page", type=Path, metavar="FILE", help="write the tables there too, between its marks")
    options = parser.parse_args(arguments)
    names = list(ABLATIONS) if options.name == ALL else [options.name]
    usual = WORKLOADS if options.traces else GENERATED_WORKLOADS
    try:
        workloads = workload.find(options.traces, options.seeds, options.workload or usual)
        store, version = Store(options.results), current()
        comparisons = {
            name: Comparison(ABLATIONS[name], workloads, store, version) for name in names
        }
        carry_out(
            [case for each in comparisons.values() for case in each.cases()], store, options.jobs
        )
        for name, comparison in comparisons.items():
            text = report(name, comparison)
            print(text)
            if options.page is not None:
                document.put(options.page, name, text)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
