"""`python -m loadtests.real_engines.handover`: one real engine prefills, another one decodes.

The gateway reaches both through taps of its own, which see when a leg is sent, and can keep it
back.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

import httpx

from gateway.config import ConfigError
from gateway.types import Role
from loadtests.process import ProcessError, Processes
from loadtests.real_engines.handover.alone import alone
from loadtests.real_engines.handover.answers import answers
from loadtests.real_engines.handover.cached import cached
from loadtests.real_engines.handover.half import CONNECTORS, Half, ours, theirs
from loadtests.real_engines.handover.leaving import leaving
from loadtests.real_engines.handover.outage import outage
from loadtests.real_engines.handover.site import LEAST, Site, site
from loadtests.real_engines.report import Check, fleet_table
from loadtests.suite import document


def main(argv: Sequence[str] | None = None) -> int:
    """Returns: the exit code: 0, or 1 when a check or something else failed."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, _terminate)
    found: list[Check] = []
    lines: list[str] = []
    try:
        with Processes() as processes, ExitStack() as stack:
            for line in _run(arguments, processes, stack):
                if isinstance(line, Check):
                    found.append(line)
                lines.append(f"{line}")
                print(line, flush=True)
    except (ProcessError, httpx.HTTPError, OSError) as error:
        print(f"\nhandover: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    failed = sum(not check.passed for check in found)
    lines.append(f"\n{len(found) - failed} checks passed, {failed} failed")
    print(lines[-1])
    if arguments.page is not None:
        text = "\n".join(lines)
        try:
            document.put(arguments.page, arguments.connector, f"```\n{text}\n```")
        except ConfigError as error:
            print(f"handover: {error}", file=sys.stderr)
            return 1
    return 1 if failed else 0


def _run(
    arguments: argparse.Namespace, processes: Processes, stack: ExitStack
) -> Iterator[str | Check]:
    """What is to be printed, as it is found out."""
    halves = _halves(arguments, processes)
    for half in halves:
        stack.enter_context(half.tap)
    for half in halves:
        half.wait_ready()
    place = stack.enter_context(site(processes, arguments.connector, halves, arguments.model))
    version = httpx.get(f"{place.decode.url}/version", trust_env=False).json().get("version")
    yield f"vLLM {version}, {arguments.connector}, handovers from {LEAST} uncached tokens on\n"
    yield f"{fleet_table(place.front.backends())}\n"
    for title, checks in _parts(place, arguments.connector == "nixl_push"):
        yield f"{title}:"
        yield from checks
    if not place.prefill.ours:
        yield "no --prefill-command, so that nothing was killed"


def _parts(place: Site, concurrent: bool) -> Iterator[tuple[str, Iterator[Check]]]:
    yield "answers", answers(place)
    yield "cached tokens", cached(place)
    yield "what is not handed over", alone(place)
    yield "clients that leave", leaving(place, concurrent=concurrent)
    if place.prefill.ours:
        yield "an outage", outage(place)


def _halves(arguments: argparse.Namespace, processes: Processes) -> tuple[Half, Half]:
    if arguments.folder is not None:
        print("starting a prefill and a decode engine, which takes a minute", flush=True)
        folder, connector = arguments.folder, arguments.connector
        return (
            ours(processes, Role.PREFILL, folder, connector),
            ours(processes, Role.DECODE, folder, connector),
        )
    prefill = theirs(processes, Role.PREFILL, arguments.prefill, arguments.prefill_command)
    if arguments.engine_id is not None:
        prefill.describe(arguments.engine_id, arguments.side_channel_port)
    return prefill, theirs(processes, Role.DECODE, arguments.decode, arguments.decode_command)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.real_engines.handover",
        description="Requests that one real vLLM prefills and another one decodes: the same text as"
        " from one alone, nothing held when clients leave, and no request lost when the prefill"
        " engine dies.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="where loadtests/real_engines/setup put vLLM; two engines are started",
    )
    parser.add_argument("--prefill", metavar="URL", help="a prefill engine of yours, http://H:P")
    parser.add_argument("--decode", metavar="URL", help="a decode engine of yours")
    parser.add_argument(
        "--prefill-command",
        metavar="COMMAND",
        help="starts the prefill engine at that URL, so that it can be killed; without it, it runs"
        " already, and nothing is killed",
    )
    parser.add_argument("--decode-command", metavar="COMMAND", help="the same for the other one")
    parser.add_argument("--model", help="of yours (default: the first that is listed)")
    parser.add_argument(
        "--connector", choices=sorted(CONNECTORS), default="nixl_pull", help="default nixl_pull"
    )
    parser.add_argument(
        "--engine-id", metavar="ID", help="of your prefill engine; nixl_push needs it"
    )
    parser.add_argument(
        "--side-channel-port", type=int, default=5600, metavar="PORT", help="default 5600"
    )
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="write the output between the marks there"
    )
    arguments = parser.parse_args(argv)
    own = (arguments.prefill, arguments.decode)
    if (arguments.folder is None) == (None in own) or (arguments.folder and any(own)):
        parser.error("either DIR, or both --prefill and --decode")
    if arguments.folder is not None and not (arguments.folder / "venv/bin/vllm").exists():
        parser.error(f"no vLLM in {arguments.folder}: run loadtests/real_engines/setup there first")
    push = arguments.connector == "nixl_push"
    if push and arguments.folder is None and arguments.engine_id is None:
        parser.error("nixl_push needs the prefill engine's --engine-id")
    return arguments


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """An exception, unlike the signal's default, stops the processes on its way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
