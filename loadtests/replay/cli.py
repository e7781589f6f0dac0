"""The command line of the replay."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from loadtests.sim import profile as profiles

T = TypeVar("T")

KV_TOKENS = 3_072_000
RUNNING_TOKENS = 400_000
"""An 8B model's share of an A100 for what runs, with a host memory tier behind it."""

_EPILOG = """\
TRACE is a file (Mooncake JSON lines, Azure CSV, the gateway's access log; packed by gzip or not) or
a generator, as in gen:chat or 'gen:chat?rate=10&seconds=600'. docs/replay.md explains all of it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("trace", metavar="TRACE", help="what to replay")
    add(
        "--policy",
        type=_list(str),
        default=["prefix_affinity", "round_robin"],
        metavar="A,B,...",
        help="policies to compare, as NAME[?param=value&...][+gate|+plain]",
    )
    add(
        "--load",
        type=_list(_positive),
        default=[1.0],
        metavar="X,Y,...",
        help="how many times as fast as recorded (default 1)",
    )
    add("--seeds", type=_count, default=1, metavar="N", help="runs of each (default 1)")
    add("--mode", choices=["open", "closed", "both"], default="open", help="(default open)")
    add("--capacity", action="store_true", help="search for the highest load within the SLO")
    add("--json", type=Path, metavar="FILE", help="write all figures and parameters there")
    add("--jobs", type=_count, default=1, metavar="N", help="processes (default 1)")
    add("--config", type=Path, metavar="FILE", help="the gateway's settings, in YAML")

    engines = parser.add_argument_group("engines")
    add = engines.add_argument
    add("--engines", type=_count, metavar="N", help="how many (default 8)")
    add("--profile", default=profiles.DEFAULT, metavar="NAME|FILE", help="(default %(default)s)")
    add("--kv-tokens", type=_count, default=KV_TOKENS, help="KV cache (default %(default)s)")
    add(
        "--max-running-tokens",
        type=_count,
        default=RUNNING_TOKENS,
        help="of those, for what runs (default %(default)s)",
    )
    add("--max-num-batched-tokens", type=_count, help="token budget of a step")
    add(
        "--speed",
        type=_list(_positive),
        metavar="X,Y,...",
        help="of each engine, in times the profile's",
    )
    add(
        "--slow-at",
        action="append",
        default=[],
        metavar="ENGINE:SECONDS:FACTOR",
        help="that engine, from 0, becomes slower at that time; may be given several times",
    )

    slo = parser.add_argument_group("SLO")
    add = slo.add_argument
    add("--slo-ttft", type=_positive, default=2.0, help="seconds (default %(default)s), or")
    add(
        "--slo-ttft-factor",
        type=_positive,
        default=3.0,
        help="times the prefill alone on an idle engine, if that is more (default %(default)s)",
    )
    add("--slo-tpot", type=_positive, default=0.1, help="seconds (default %(default)s)")


def run(arguments: argparse.Namespace) -> int:
    """Replay, print the tables, and write the JSON.

    Raises:
        ConfigError: the trace, a policy or an option is wrong.
    """
    # Late, because the gateway's command reads this module for the options alone.
    from loadtests.replay.command import replay

    return replay(arguments)


def _list(item: Callable[[str], T]) -> Callable[[str], list[T]]:
    def convert(text: str) -> list[T]:
        return [item(part) for part in text.split(",") if part]

    return convert


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be above 0")
    return value
