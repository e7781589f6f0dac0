"""Fake engines as processes: started, given faults, killed, frozen, started again on their port."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from loadtests.chaos.faults import OF_PROCESSES, Fault
from loadtests.process import HOST, ProcessError, answers, free_ports

_READY = 20.0
"""Seconds that a process may take to listen."""
_POLL = 0.02


@dataclass(slots=True)
class Span:
    """A time in which something is wrong with an engine; seconds of `time.monotonic`."""

    fault: Fault
    begin: float
    end: float = float("inf")


@dataclass(slots=True, eq=False)
class Handle:
    """One engine, whatever process stands for it at the moment.

    Attributes:
        incarnations: names of its processes so far; the last one may have ended.
        spans: when something was wrong with it.
    """

    number: int
    port: int
    journal: Path
    seed: int
    first_token: float
    incarnations: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def fault(self) -> Fault | None:
        """What is wrong with it now."""
        if self.spans and self.spans[-1].end == float("inf"):
            return self.spans[-1].fault
        return None

    def well(self, begin: float, end: float) -> bool:
        """Whether nothing was wrong with it for any of this time."""
        return all(span.end < begin or span.begin > end for span in self.spans)

    def start(self) -> None:
        """Start a process, the cache of which is empty. Does not wait for it."""
        incarnation = f"e{self.number}.{len(self.incarnations)}"
        command = [sys.executable, "-m", "loadtests.chaos.engine"]
        seed = self.seed + len(self.incarnations)
        command += [
            str(self.port),
            incarnation,
            str(self.journal),
            str(seed),
            str(self.first_token),
        ]
        self.incarnations.append(incarnation)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def wait_up(self) -> None:
        """Wait until the process listens.

        Raises:
            ProcessError: it has ended, or takes too long.
        """
        process, deadline = self._process, time.monotonic() + _READY
        assert process is not None
        while not answers(self.port, "/health"):
            if process.poll() is not None:
                raise ProcessError(f"engine {self.number} ended with code {process.returncode}")
            if time.monotonic() > deadline:
                raise ProcessError(f"engine {self.number} is not up in {_READY:g} s")
            time.sleep(_POLL)

    def begin(self, fault: Fault, share: float = 1.0) -> None:
        """Put something wrong with it.

        Args:
            share: of its answers.
        """
        self.spans.append(Span(fault, time.monotonic()))
        if fault is Fault.FREEZE:
            self._signal(signal.SIGSTOP)
        elif fault in OF_PROCESSES:
            self.kill()
            if fault is Fault.RESTART:
                self.start()
        else:
            self._order(f"{fault.name} {share}\n".encode())

    def end(self) -> None:
        """Put right what is wrong with it; a new process may take a moment until it listens."""
        span = self.spans[-1]
        if span.fault is Fault.FREEZE:
            self._signal(signal.SIGCONT)
        elif span.fault is Fault.KILL:
            self.start()
        elif span.fault not in OF_PROCESSES:
            self._order(b"\n")
        span.end = time.monotonic()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            _pipe(process).close()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def _order(self, line: bytes) -> None:
        assert self._process is not None
        pipe = _pipe(self._process)
        pipe.write(line)
        pipe.flush()


class Fleet:
    """A context with so many engines, none of which outlives it.

    Args:
        first_token: seconds until an answer begins, on average.
    """

    def __init__(self, count: int, directory: Path, seed: int, first_token: float) -> None:
        self.engines = [
            Handle(
                number,
                port,
                directory / f"engine-{number}.journal",
                seed + 1000 * number,
                first_token,
            )
            for number, port in enumerate(free_ports(count))
        ]

    @property
    def urls(self) -> list[str]:
        return [engine.url for engine in self.engines]

    def __enter__(self) -> Self:
        try:
            for engine in self.engines:
                engine.start()
            for engine in self.engines:
                engine.wait_up()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        for engine in self.engines:
            engine.kill()


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin
