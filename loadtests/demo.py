"""The demonstration: the same traffic over four simulated engines, once per routing policy.

Engines and gateway are real processes on loopback, new ones for every policy, so that each run
starts with empty caches. The workload (`MIX`) is the regime in which routing matters: many
conversations and documents with a handful of requests each, and KV caches that together hold the
working set once, but not a copy of all of it on every engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import msgspec
import uvloop

from loadtests.client import Client
from loadtests.player import Recording, play
from loadtests.process import HOST, ProcessError, Processes, free_ports
from loadtests.progress import Progress
from loadtests.sample import Sample
from loadtests.summary import ALL, Summary, by_kind, percentile, table
from loadtests.workload import Mix, Session, generate, requests

MODEL = "demo"
ENGINES = 4
KV_TOKENS = 52_000
MIX = Mix(chats=60, documents=30, one_offs=50, arrivals=12.0)
POLICIES = ("round_robin", "prefix_affinity")

_LATE = 0.1
"""Seconds of event-loop lag at P99 from which the client's times are not to be trusted."""


class DemoError(RuntimeError):
    """The run is worth nothing; the message says why."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns: the exit code: 0, or 1 when something failed."""
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _demonstrate(arguments)
    except (ProcessError, DemoError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.demo",
        description="The same traffic over four simulated engines, once per routing policy.",
    )
    parser.add_argument("--keep", action="store_true", help="leave the last run's fleet running")
    parser.add_argument("--seed", type=int, default=1, help="of the workload (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every request and figure")
    return parser.parse_args(argv)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """An exception, unlike the signal's default, stops the processes on its way out."""
    raise SystemExit(128 + number)


def _demonstrate(arguments: argparse.Namespace) -> None:
    sessions = generate(MIX, arguments.seed)
    print(
        f"{MIX.chats} chats, {MIX.documents} documents and {MIX.one_offs} one-offs: "
        f"{requests(sessions)} requests over {ENGINES} simulated engines "
        f"(Llama-3-8B on A100, {KV_TOKENS:,} tokens of KV cache each)",
        flush=True,
    )
    recordings = {}
    for policy in POLICIES:
        with _fleet(policy) as (processes, port):
            recordings[policy] = _record(processes, port, policy, sessions)
            if policy == POLICIES[-1]:
                _report(recordings, arguments.json)
                if arguments.keep:
                    _stay(processes, port)


@contextlib.contextmanager
def _fleet(policy: str) -> Iterator[tuple[Processes, int]]:
    """Engines and a gateway before them: the processes, and the gateway's port."""
    command = [sys.executable, "-m", "gateway.cli"]
    port, *engines = free_ports(1 + ENGINES)
    with Processes() as processes:
        started = []
        for number, engine in enumerate(engines, start=1):
            options = ["--port", f"{engine}", "--model", MODEL, "--kv-tokens", f"{KV_TOKENS}"]
            started.append(processes.start(f"engine {number}", [*command, "sim-engine", *options]))
        for service, engine in zip(started, engines, strict=True):
            service.wait_ready(engine, "/health")
        backends = [f"--backend=http://{HOST}:{engine}" for engine in engines]
        options = ["--port", f"{port}", "--policy", policy, *backends]
        gateway = processes.start("gateway", [*command, "serve", *options])
        gateway.wait_ready(port, "/ready", expect=b'"healthy":%d' % ENGINES)
        yield processes, port


def _record(processes: Processes, port: int, policy: str, sessions: Sequence[Session]) -> Recording:
    progress = Progress(policy, requests(list(sessions)), sys.stdout)

    def observe(sample: Sample) -> None:
        processes.check()
        if sample.error is not None:
            what = f"{sample.session}, turn {sample.turn}"
            raise DemoError(f"a request failed under {policy} ({what}): {sample.error}")
        progress.step()

    async def run() -> Recording:
        client = Client(HOST, port)
        try:
            return await play(client, MODEL, sessions, observe)
        finally:
            client.close()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run())
    finally:
        progress.close()


def _report(recordings: dict[str, Recording], file: Path | None) -> None:
    runs = {name: by_kind(run.samples, run.seconds) for name, run in recordings.items()}
    print(f"\n{table(runs)}\n\n{_verdict(runs[POLICIES[0]][ALL], runs[POLICIES[1]][ALL])}")
    for name, run in recordings.items():
        late = percentile(sorted(run.lags), 0.99)
        if late > _LATE:
            print(
                f"warning: under {name} this client was {1000 * late:.0f} ms late at P99: the "
                "machine is too busy, or too small, for these times to mean much"
            )
    if file is not None:
        file.write_bytes(msgspec.json.encode({"summaries": runs, "recordings": recordings}))


def _verdict(before: Summary, after: Summary) -> str:
    if not before.hit_ratio:
        raise DemoError(f"the engines told of no cached tokens under {POLICIES[0]}")
    return (
        f"{POLICIES[1]} against {POLICIES[0]}: {after.hit_ratio / before.hit_ratio:.1f} times the "
        f"prefix hits; TTFT at P50 {after.ttft.p50 / before.ttft.p50 - 1:+.0%}, "
        f"P95 {after.ttft.p95 / before.ttft.p95 - 1:+.0%}, "
        f"P99 {after.ttft.p99 / before.ttft.p99 - 1:+.0%}"
    )


def _stay(processes: Processes, port: int) -> None:
    """Until Ctrl-C."""
    lines = "\n".join(f"\n  {line}" for line in curl_lines(f"http://{HOST}:{port}"))
    print(
        "\nThe fleet is still running. To try (send the first twice: the second time it matches):"
        f"\n{lines}\n\nCtrl-C ends it.",
        flush=True,
    )
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            processes.check()
            time.sleep(0.5)


def curl_lines(base: str) -> list[str]:
    """Commands that show what the gateway at `base` does."""
    content = "Blocks of a prompt are hashed in a chain, each with all before it. " * 4 + "Why?"
    messages = [{"role": "user", "content": content}]
    chat = {"model": MODEL, "messages": messages, "max_tokens": 24}
    path = "/v1/chat/completions"
    return [
        f"curl -i {base}{path} {_posting(chat)}",
        f"curl -s {base}/admin/v1/explain {_posting({'path': path, 'body': chat})}",
        f"curl -s {base}/admin/v1/backends",
        f"curl -s {base}/metrics",
    ]


def _posting(body: dict[str, Any]) -> str:
    return f"-H 'content-type: application/json' -d '{json.dumps(body)}'"


if __name__ == "__main__":
    sys.exit(main())
