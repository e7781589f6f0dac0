"""CPU that a reverse proxy spends per request and per streamed chunk.

The figure of merit is the proxy's own CPU time (user and system, the whole process tree) divided
by what it served: on a noisy machine it is far steadier than throughput. Two mock engines answer
without work of their own; a closed-loop load generator compares every body byte for byte. Proxies
take turns, in alternating order, and medians and minima of the repetitions are given.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from loadtests.hop.bodies import write_bodies, write_warm_bodies
from loadtests.hop.cputime import cpu_seconds, resident_mb, tree
from loadtests.process import HOST, ProcessError, Processes, Service, free_ports

_HERE = Path(__file__).resolve().parent
_SETTLE = 0.15
_CHUNK_GAP_US = 10_000
_WARM_SIZE = 32 * 1024
_WARM_CONNECTIONS = 16
_WARM_LIMIT_MS = 300_000
_MAX_BODIES = 16_384
"""As many as the load generator reads."""


@dataclass(slots=True, frozen=True)
class Scenario:
    """
    Attributes:
        connections: requests in flight at any time.
        body: bytes of a request's body.
        chunks: events of a streamed answer, 10 ms apart; 0 for answers in one piece.
        milliseconds: how long a measurement takes; a shorter run before it warms up.
    """

    connections: int
    body: int
    chunks: int
    milliseconds: int

    @property
    def unit(self) -> str:
        return "chunk" if self.chunks else "request"


SCENARIOS = {
    "small": Scenario(connections=32, body=2048, chunks=0, milliseconds=2500),
    "large": Scenario(connections=32, body=32 * 1024, chunks=0, milliseconds=2500),
    "stream64": Scenario(connections=64, body=2048, chunks=100, milliseconds=4000),
    "stream256": Scenario(connections=256, body=2048, chunks=100, milliseconds=3000),
}
_WARM_UP_MS = 700


class Load(msgspec.Struct, frozen=True):
    """What the load generator prints. Latencies in milliseconds."""

    done: int
    errors: int
    not_200: int
    mismatches: int
    stuck: int
    seconds: float
    lat_p50: float
    lat_p99: float
    first_p50: float
    first_p99: float

    @property
    def bad(self) -> int:
        """Requests that did not get exactly the answer that the engine sent."""
        return self.errors + self.not_200 + self.mismatches + self.stuck


@dataclass(slots=True, frozen=True)
class Reading:
    """One measurement.

    Attributes:
        proxy, scenario: of what.
        cpu_us: microseconds of CPU per request, or per chunk of a streamed answer.
        resident_mb: memory after it.
    """

    proxy: str
    scenario: str
    cpu_us: float
    resident_mb: float
    load: Load


class Bench:
    """Compiled tools, request bodies and running mock engines.

    Args:
        folder: where to build.
        processes: what the engines and proxies are started in.
        warm: how many distinct 32 kB bodies every proxy gets before it is measured.
    """

    def __init__(self, folder: Path, processes: Processes, warm: int) -> None:
        if warm > _MAX_BODIES:
            raise ProcessError(f"at most {_MAX_BODIES} warm bodies, not {warm}")
        self._folder = folder
        self._processes = processes
        self._warm = warm
        for tool in ("mock", "loadgen"):
            source = _HERE / f"{tool}.c"
            command = ["gcc", "-O2", "-Wall", "-o", str(folder / tool), str(source)]
            try:
                subprocess.run(command, check=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise ProcessError(f"{source.name} cannot be compiled: {error}") from None
        for size in {scenario.body for scenario in SCENARIOS.values()}:
            write_bodies(self._bodies(size), size, 512 if size < 10_000 else 256)
        if warm:
            write_warm_bodies(self._warm_bodies, _WARM_SIZE, warm)
        self._engines = free_ports(2)
        ports = ",".join(map(str, self._engines))
        mock = processes.start("mock", [str(folder / "mock"), ports, "100", str(_CHUNK_GAP_US)])
        mock.wait_ready(self._engines[0], "/health")

    def run(self, proxy: str, command: str, scenarios: Sequence[str]) -> list[Reading]:
        """Start a proxy, measure it and stop it.

        Args:
            command: with {port}, {b1}, {b2} (the engines' URLs) and, where needed, {metrics}
                (a port for the proxy's metrics) in it.

        Raises:
            ProcessError: it could not be measured.
        """
        port, metrics = free_ports(2)
        first, second = (f"http://{HOST}:{engine}" for engine in self._engines)
        words = [
            word.format(port=port, b1=first, b2=second, metrics=metrics)
            for word in shlex.split(command)
        ]
        service = self._processes.start(proxy, words)
        try:
            self._wait_ready(service, port)
            if self._warm:
                self._fill(service, port)
            return [self._measure(service, port, scenario) for scenario in scenarios]
        finally:
            self._processes.stop(service)

    def _fill(self, service: Service, port: int) -> None:
        load = self._send(
            port, self._warm_bodies, _WARM_CONNECTIONS, _WARM_LIMIT_MS, 0, requests=self._warm
        )
        if load.done != self._warm or load.bad:
            raise ProcessError(f"{service.name} did not take all {self._warm} warm bodies: {load}")

    def _measure(self, service: Service, port: int, name: str) -> Reading:
        scenario = SCENARIOS[name]
        bodies = self._bodies(scenario.body)
        self._send(port, bodies, scenario.connections, _WARM_UP_MS, scenario.chunks)
        pids = tree(service.process.pid)
        time.sleep(_SETTLE)
        before = cpu_seconds(pids)
        load = self._send(
            port, bodies, scenario.connections, scenario.milliseconds, scenario.chunks
        )
        used = cpu_seconds(pids) - before
        served = max(1, load.done) * (scenario.chunks or 1)
        return Reading(service.name, name, used / served * 1e6, resident_mb(pids), load)

    def _wait_ready(self, service: Service, port: int, seconds: float = 60.0) -> None:
        """Wait until a chat completion goes through: proxies differ in how they say ready."""
        deadline = time.monotonic() + seconds
        bodies = self._bodies(min(scenario.body for scenario in SCENARIOS.values()))
        while True:
            service.check()
            load = self._send(port, bodies, 1, 3000, 0, requests=1)
            if load.done and not load.bad:
                return
            if time.monotonic() > deadline:
                raise ProcessError(f"{service.name} serves no request after {seconds:g} s")
            time.sleep(0.1)

    def _send(
        self,
        port: int,
        bodies: Path,
        connections: int,
        milliseconds: int,
        chunks: int,
        requests: int | None = None,
    ) -> Load:
        options = [port, connections, milliseconds, chunks, bodies]
        if requests is not None:
            options.append(requests)
        command = [str(self._folder / "loadgen"), *map(str, options)]
        result = subprocess.run(command, capture_output=True, check=True)
        return msgspec.json.decode(result.stdout, type=Load)

    def _bodies(self, size: int) -> Path:
        return self._folder / f"bodies-{size}.jsonl"

    @property
    def _warm_bodies(self) -> Path:
        return self._folder / "warm.jsonl"


def measure(
    folder: Path,
    proxies: Mapping[str, str],
    scenarios: Sequence[str],
    repetitions: int,
    warm: int,
) -> list[Reading]:
    """Measure proxies, by name and command, in turn.

    Raises:
        ProcessError: one of them could not be measured.
    """
    readings: list[Reading] = []
    names = list(proxies)
    with Processes() as processes:
        bench = Bench(folder, processes, warm)
        for repetition in range(repetitions):
            for name in names if repetition % 2 == 0 else reversed(names):
                readings += bench.run(name, proxies[name], scenarios)
    return readings
