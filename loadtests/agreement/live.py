"""A slice through a real gateway before real processes of the simulated engine."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from loadtests.agreement.figures import Figures, figures
from loadtests.agreement.setup import Setup
from loadtests.agreement.workload import prompt
from loadtests.client import Answer, Client
from loadtests.process import HOST, Processes, free_ports
from loadtests.real_engines.counters import Counters, read_counters
from loadtests.real_engines.fleet import gateway
from loadtests.replay.trace import Trace

_CHAT = "/v1/chat/completions"
_TIMEOUT = 300.0
_LEAD = 1.0
"""Seconds from the start of a run to the trace's begin."""


@dataclass(slots=True, frozen=True)
class Run:
    """
    Attributes:
        lag: seconds from when a request was due to when it was sent, in all but 5 % of the cases.
        cpu: processor seconds of gateway and engines per second, their start included.
    """

    figures: Figures
    lag: float
    cpu: float


def play(trace: Trace, policy: str, setup: Setup) -> Run:
    """
    Args:
        trace: a slice.

    Raises:
        ProcessError: the gateway or an engine does not start, or ends.
    """
    bodies = _bodies(trace, setup.profile.model)
    before, begin = _cpu_seconds(), time.monotonic()
    with Processes() as processes:
        ports = free_ports(setup.engines)
        services = [
            processes.start(f"engine {number}", _engine(port, setup))
            for number, port in enumerate(ports)
        ]
        for service, port in zip(services, ports, strict=True):
            service.wait_ready(port, "/health")
        urls = [f"http://{HOST}:{port}" for port in ports]
        with gateway(processes, policy, urls) as running:
            answers, lag = asyncio.run(_send(running.url, trace, bodies))
            processes.check()
        counted = [read_counters(url) for url in urls]
    cpu = (_cpu_seconds() - before) / (time.monotonic() - begin)
    return Run(_figures(answers, counted), lag, cpu)


def _figures(answers: Sequence[Answer], counted: Sequence[Counters]) -> Figures:
    good = [answer for answer in answers if answer.error is None]
    return figures(
        len(answers),
        sum(engine.hits for engine in counted) / sum(engine.queries for engine in counted),
        (answer.ttft for answer in good),
        (answer.tpot for answer in good),
    )


def _engine(port: int, setup: Setup) -> list[str]:
    command = [sys.executable, "-m", "gateway.cli", "sim-engine", f"--port={port}"]
    return command + setup.engine_options


def _bodies(trace: Trace, model: str) -> list[bytes]:
    assert trace.block_tokens is not None
    return [
        msgspec.json.encode(
            {
                "model": model,
                "messages": [
                    {"role": "user", "content": prompt(request, place, trace.block_tokens)}
                ],
                "max_tokens": request.output_tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        for place, request in enumerate(trace.requests)
    ]


async def _send(url: str, trace: Trace, bodies: Sequence[bytes]) -> tuple[list[Answer], float]:
    """All requests, each when it is due, whatever became of those before.

    Returns:
        The answers, in the trace's order, and the lag that all but 5 % of the requests stay below.
    """
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    client = Client(place.hostname, place.port, timeout=_TIMEOUT)
    loop = asyncio.get_running_loop()
    begin = loop.time() + _LEAD
    lags = []

    async def send(due: float, body: bytes) -> Answer:
        await asyncio.sleep(begin + due - loop.time())
        lags.append(loop.time() - begin - due)
        return await client.post(_CHAT, body)

    try:
        answers = await asyncio.gather(
            *(send(r.arrival, body) for r, body in zip(trace.requests, bodies, strict=True))
        )
    finally:
        client.close()
    return answers, sorted(lags)[int(0.95 * (len(lags) - 1))]


def _cpu_seconds() -> float:
    """Of processes that were started and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
