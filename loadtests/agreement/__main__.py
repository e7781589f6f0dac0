"""`python -m loadtests.agreement`: does the live gateway do what virtual time says?"""

from __future__ import annotations

import argparse
import sys

from gateway.config import ConfigError
from loadtests.agreement import live, report, virtual
from loadtests.agreement.setup import GENERATED, POLICIES, Setup
from loadtests.agreement.workload import cut
from loadtests.process import ProcessError
from loadtests.replay import source


def main() -> int:
    """
    Returns:
        0 when they agree, 1 when they do not, 2 when it could not be found out.
    """
    arguments = _parser().parse_args()
    setup = Setup(arguments.engines, arguments.speed, arguments.kv_tokens)
    try:
        trace = cut(
            source.find(arguments.trace)(arguments.seed),
            arguments.seconds,
            arguments.load,
            setup.profile.max_model_len,
        )
        policies = arguments.policy.split(",")
        expected = {policy: virtual.play(trace, policy, setup) for policy in policies}
        measured = {}
        for policy in policies:
            print(f"{policy}: {trace.span:.0f} s and what is left then", file=sys.stderr)
            measured[policy] = live.play(trace, policy, setup)
    except (ConfigError, ProcessError) as error:
        print(f"agreement: {error}", file=sys.stderr)
        return 2
    print(report.text(trace, setup, expected, measured))
    return 0 if report.agree(expected, measured) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.agreement",
        description="Play a slice of a trace in virtual time and through a real gateway before"
        " simulated engines, and compare.",
    )
    add = parser.add_argument
    default = Setup()
    add("trace", nargs="?", default=GENERATED, help="as of prefixgate replay (default %(default)s)")
    add("--seconds", type=float, default=100.0, help="length of the slice (default %(default)s)")
    add("--load", type=float, default=1.0, help="times as fast as recorded (default %(default)s)")
    add("--seed", type=int, default=1, help="(default %(default)s)")
    add("--policy", default=",".join(POLICIES), help="(default %(default)s)")
    add("--engines", type=int, default=default.engines, help="(default %(default)s)")
    add("--speed", type=float, default=default.speed, help="of the engines (default %(default)s)")
    add("--kv-tokens", type=int, default=default.kv_tokens, help="(default %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
