"""`python -m loadtests.hop`: what a hop through a gateway costs, beside others, in one run."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadtests.hop.measure import SCENARIOS, Reading, measure
from loadtests.hop.peers import peer_commands
from loadtests.process import ProcessError

_OWN = f"{sys.executable} -m gateway.cli serve --port {{port}} --backend {{b1}} --backend {{b2}}"
_COLUMN = 34


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _arguments(argv)
    proxies = dict(arguments.proxy) or {"prefixgate": _OWN}
    if arguments.peers is not None:
        proxies |= peer_commands(arguments.peers)
    scenarios = arguments.scenarios.split(",")
    try:
        with tempfile.TemporaryDirectory(prefix="prefixgate-hop-") as folder:
            readings = measure(Path(folder), proxies, scenarios, arguments.reps, arguments.warm)
    except ProcessError as error:
        print(f"hop: {error}", file=sys.stderr)
        return 1
    print(table(readings))
    if arguments.json is not None:
        arguments.json.write_bytes(msgspec.json.encode(readings))
    return 1 if any(reading.load.bad for reading in readings) else 0


def table(readings: Sequence[Reading]) -> str:
    """One row a proxy, one column a scenario: CPU microseconds, median and minimum, and P99 (of
    the first byte for streams, of the whole answer otherwise) in milliseconds, median."""
    scenarios = list(dict.fromkeys(reading.scenario for reading in readings))
    proxies = list(dict.fromkeys(reading.proxy for reading in readings))
    units = [f"us per {SCENARIOS[scenario].unit}" for scenario in scenarios]
    lines = [
        f"{'':<28}" + "".join(f"{scenario:>{_COLUMN}}" for scenario in scenarios),
        f"{'CPU us: median/min, p99 ms':<28}" + "".join(f"{unit:>{_COLUMN}}" for unit in units),
    ]
    for proxy in proxies:
        cells = [
            _cell([r for r in readings if r.proxy == proxy and r.scenario == scenario])
            for scenario in scenarios
        ]
        lines.append(f"{proxy:<28}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells))
    return "\n".join(lines)


def _cell(readings: Sequence[Reading]) -> str:
    streamed = SCENARIOS[readings[0].scenario].chunks > 0
    costs = [reading.cpu_us for reading in readings]
    late = statistics.median(r.load.first_p99 if streamed else r.load.lat_p99 for r in readings)
    bad = sum(reading.load.bad for reading in readings)
    cell = f"{statistics.median(costs):.1f}/{min(costs):.1f}  p99 {late:.1f}"
    return f"{cell}  BAD {bad}" if bad else cell


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.hop",
        description="CPU that a gateway spends per request and per streamed chunk. Needs gcc and "
        "Linux. A command gets {port} (to listen on at 127.0.0.1), {b1} and {b2} (the engines' "
        "URLs) and {metrics} (a free port); the model is called m.",
    )
    parser.add_argument(
        "--proxy",
        action="append",
        default=[],
        type=_named_command,
        metavar="NAME=COMMAND",
        help="what to measure; may be given several times (default: this gateway)",
    )
    parser.add_argument(
        "--peers", type=Path, metavar="DIR", help="also measure what peers-setup put there"
    )
    parser.add_argument("--reps", type=int, default=3, help="repetitions (default 3)")
    parser.add_argument(
        "--scenarios",
        default=",".join(SCENARIOS),
        type=_scenario_names,
        metavar="NAME,...",
        help=f"default: {','.join(SCENARIOS)}",
    )
    parser.add_argument(
        "--warm",
        type=int,
        default=0,
        metavar="N",
        help="send N distinct 32 kB prompts first, so that the prefix index is full (default 0)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every reading")
    return parser.parse_args(argv)


def _named_command(text: str) -> tuple[str, str]:
    name, separator, command = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=COMMAND")
    return name, command


def _scenario_names(text: str) -> str:
    unknown = set(text.split(",")) - set(SCENARIOS)
    if unknown:
        raise argparse.ArgumentTypeError(f"no scenario {', '.join(sorted(unknown))}")
    return text


if __name__ == "__main__":
    sys.exit(main())
