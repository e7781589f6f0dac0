"""`python -m loadtests.chaos`: does the gateway keep its promises while everything fails?"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gateway.config import ConfigError
from loadtests.chaos import kill, report, run
from loadtests.chaos.kill import Kill
from loadtests.chaos.run import Plan
from loadtests.process import ProcessError
from loadtests.suite import document


def main(arguments: list[str] | None = None) -> int:
    """
    Returns:
        0 when all of them were kept, 1 when not, 2 when it could not be found out.
    """
    options = _parser().parse_args(arguments)
    try:
        if options.scenario == "kill":
            killed = kill.run(Kill(seed=options.seed))
            part, text, kept = "kill", kill.table(killed), killed.kept
        else:
            plan = Plan(options.requests, options.engines, options.seed)
            result = run.run(plan, lambda line: print(line, file=sys.stderr))
            part, text, kept = "chaos", report.table(result), not result.violations
        print(text)
        if options.page is not None:
            document.put(options.page, part, text)
    except (ConfigError, ProcessError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    return 0 if kept else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.chaos", description=__doc__)
    add = parser.add_argument
    default = Plan()
    add("--scenario", choices=("storm", "kill"), default="storm", help="(default %(default)s)")
    add("--requests", type=int, default=default.requests, metavar="N", help="(default %(default)s)")
    add("--engines", type=int, default=default.engines, metavar="N", help="(default %(default)s)")
    add("--seed", type=int, default=default.seed, metavar="S", help="(default %(default)s)")
    add("--page", type=Path, metavar="FILE", help="write the table there too, between its marks")
    return parser


if __name__ == "__main__":
    sys.exit(main())
