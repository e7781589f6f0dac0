"""A worker, as its supervisor has it: a process, and the channel to it."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import msgspec

from gateway.listener import FORCED_SECONDS, TICK
from gateway.workers.channel import Answer, Channel, Silent
from gateway.workers.words import NONE, Ask, Orders

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Child:
    """One place among the workers, and the process that has it.

    Args:
        number: from 1.

    Attributes:
        serving: it has said that it serves.
        has_served: it, or one before it in this place.
        silent: it did not answer in time when it was last asked for its metrics.
        standing_in: the worker that takes its connections while it does not serve.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.serving = False
        self.has_served = False
        self.silent = False
        self.standing_in: Child | None = None
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None

    async def start(
        self,
        words: Sequence[str],
        instance: str,
        sockets: list[list[socket.socket]],
        admin: list[socket.socket],
        answer: Answer,
    ) -> asyncio.Task[None]:
        """Start the process.

        Args:
            words: of the command line.
            instance, sockets, admin: as in `Orders`.
            answer: to what it asks.

        Returns:
            Done when it has ended.

        Raises:
            OSError: the machine has no room for it.
        """
        ours, theirs = socket.socketpair()
        places = [[sock.fileno() for sock in place] for place in sockets]
        listening = [sock.fileno() for sock in admin]
        orders = Orders(self.number, instance, theirs.fileno(), places, listening)
        with theirs:
            try:
                self._process = _spawned(
                    [*words, "--as-worker", msgspec.json.encode(orders).decode()],
                    (theirs.fileno(), *chain(*places), *listening),
                )
            except OSError:
                ours.close()
                raise
        self._channel = Channel(answer)
        return await self._channel.open(ours)

    async def exit_code(self) -> int:
        """Of the process that has ended: minus a signal's number if that ended it. One that has
        closed its channel and goes on has lost its mind, and is killed."""
        process = self._process
        assert process is not None
        end = time.monotonic() + FORCED_SECONDS
        while process.poll() is None:
            if time.monotonic() > end:
                process.kill()
            await asyncio.sleep(TICK)
        self._channel = self._process = None
        self.serving = self.silent = False
        return process.returncode

    async def ask(self, what: Ask, body: bytes = NONE, timeout: float | None = None) -> bytes:
        """Raises:
        Silent, Failed.
        """
        if self._channel is None:
            raise Silent("does not run")
        return await self._channel.ask(what, body, timeout)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()


def _spawned(words: list[str], descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gateway.cli", *words]
    with _blocked_signals():
        return subprocess.Popen(command, pass_fds=descriptors)


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """What is started meanwhile never hears of them. Workers hear from the supervisor instead: a
    terminal's Ctrl-C and service managers signal all processes, which would count twice."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
