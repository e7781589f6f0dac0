"""`python -m loadtests.real_engines`: conversations over real engines, under two policies.

The same conversations are held twice, through a new gateway each time: first under a policy that
knows nothing of prefixes, then under prefix affinity. A cache salt of its own keeps each run from
finding what another has left in the engines' caches.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import httpx
import openai

from loadtests.process import ProcessError, Processes
from loadtests.progress import Progress
from loadtests.real_engines.arm import Arm
from loadtests.real_engines.conversations import ConversationError, conversations, hold
from loadtests.real_engines.counters import read_counters, read_estimate
from loadtests.real_engines.exchange import Exchange
from loadtests.real_engines.fleet import Engine, Gateway, gateway
from loadtests.real_engines.report import (
    Check,
    checks,
    comparison_table,
    engines_table,
    fleet_table,
    turns_table,
)
from loadtests.real_engines.restart import restart
from loadtests.workload import Session, requests

POLICIES = ("round_robin", "prefix_affinity")
ENGINES = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Returns: the exit code: 0, or 1 when a check or something else failed."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        with Processes() as processes:
            found = _run(arguments, processes)
    except (ProcessError, ConversationError, openai.OpenAIError, httpx.HTTPError) as error:
        print(f"\nreal engines: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    failed = sum(not check.passed for check in found)
    print(f"\n{len(found) - failed} checks passed, {failed} failed")
    return 1 if failed else 0


def _run(arguments: argparse.Namespace, processes: Processes) -> list[Check]:
    ours = []
    if arguments.folder is not None:
        print(f"starting {ENGINES} engines, which takes a minute", flush=True)
        ours = [Engine(processes, arguments.folder, n + 1) for n in range(ENGINES)]
        for engine in ours:
            engine.wait_ready()
    urls: list[str] = arguments.engine or [engine.url for engine in ours]
    sessions = conversations(arguments.conversations, arguments.seed)
    with gateway(processes, POLICIES[0], urls) as front:
        print(fleet_table(front.backends()), flush=True)
        model = arguments.model or front.backends()[0].models[0]
        control = _arm(processes, front, POLICIES[0], model, sessions, arguments.at_a_time)
    with gateway(processes, POLICIES[1], urls) as front:
        arm = _arm(processes, front, POLICIES[1], model, sessions, arguments.at_a_time)
        print(f"\n{engines_table([control, arm])}")
        print(f"\n{arm.policy}:\n{turns_table(arm)}\n\n{comparison_table(arm)}\n", flush=True)
        block_sizes = {view.id: view.block_size for view in front.backends()}
        found = []
        for check in checks(control, arm, block_sizes):
            found.append(check)
            print(check, flush=True)
        if ours:
            for check in restart(front, ours[0], model):
                found.append(check)
                print(check, flush=True)
    return found


def _arm(
    processes: Processes,
    front: Gateway,
    policy: str,
    model: str,
    sessions: Sequence[Session],
    at_a_time: int,
) -> Arm:
    progress = Progress(policy, requests(list(sessions)), sys.stdout)

    def observe(exchange: Exchange) -> None:
        processes.check()
        progress.step()

    urls = {view.id: view.url for view in front.backends()}
    before = {id: read_counters(url) for id, url in urls.items()}
    salt = secrets.token_hex(8)
    try:
        exchanges = asyncio.run(hold(front.url, model, salt, sessions, at_a_time, observe))
    finally:
        progress.close()
    counters = {id: read_counters(url).since(before[id]) for id, url in urls.items()}
    return Arm(policy, exchanges, counters, read_estimate(front.url))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.real_engines",
        description="Multi-turn conversations over real vLLM engines, under round robin and under "
        "prefix affinity: where each turn goes, and what the engines find in their caches.",
    )
    engines = parser.add_mutually_exclusive_group(required=True)
    engines.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help="where loadtests/real_engines/setup put vLLM; two engines are started",
    )
    engines.add_argument(
        "--engine",
        action="append",
        metavar="URL",
        help="a vLLM of yours that nobody else uses meanwhile; to be given once for each",
    )
    parser.add_argument("--model", help="of yours (default: the first that is listed)")
    parser.add_argument(
        "--conversations", type=int, default=20, metavar="N", help="default 20, of 4 turns each"
    )
    parser.add_argument(
        "--at-a-time", type=int, default=2, metavar="N", help="requests under way (default 2)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of the conversations (default 1)")
    arguments = parser.parse_args(argv)
    if arguments.folder is not None and not (arguments.folder / "venv/bin/vllm").exists():
        parser.error(f"no vLLM in {arguments.folder}: run loadtests/real_engines/setup there first")
    return arguments


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """An exception, unlike the signal's default, stops the processes on its way out."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
