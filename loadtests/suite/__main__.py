"""The benchmark suite: every policy on every workload.

    python -m loadtests.suite --traces DIR --jobs 2

What is in the results already is not run again, so it may be interrupted at any time, and asked
for more seeds later.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.config import ConfigError
from loadtests.suite import document, workload
from loadtests.suite.plan import LOADS, POLICIES, Plan, arm
from loadtests.suite.report import report
from loadtests.suite.store import Store
from loadtests.suite.version import ROOT, current
from loadtests.suite.work import carry_out

PART = "replay"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.suite", description=__doc__)
    add = parser.add_argument
    add("--traces", type=Path, metavar="DIR", help="of conversation_trace and synthetic_trace")
    add("--seeds", type=int, default=5, metavar="N", help="(default 5)")
    add("--jobs", type=int, default=2, metavar="N", help="processes (default 2)")
    add("--results", type=Path, default=ROOT / "build" / "replay.jsonl", metavar="FILE")
    add("--page", type=Path, default=ROOT / "docs" / "benchmarks.md", metavar="FILE")
    add("--workload", action="append", default=[], metavar="NAME", help="only this; repeatable")
    add("--policy", action="append", default=[], metavar="NAME", help="only this; repeatable")
    add("--load", action="append", type=float, default=[], metavar="X", help="likewise")
    add("--no-capacity", action="store_true", help="leave out the search for capacities")
    add("--render", action="store_true", help="only write the page, from what is there")
    options = parser.parse_args(arguments)
    try:
        plan = Plan(
            workload.find(options.traces, options.seeds, options.workload),
            [arm(name) for name in options.policy or POLICIES],
            options.load or LOADS,
            current(),
        )
        store = Store(options.results)
        if not options.render:
            carry_out(plan.runs(), store, options.jobs)
            if not options.no_capacity:
                carry_out(plan.searches(store), store, options.jobs)
        document.put(options.page, PART, report(plan, store))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
