"""The process that keeps the workers running, and answers for all of them.

It serves no requests. Workers are new interpreters and not forks: nothing that is random or
counts (ids, hash seeds, what a library keeps) can be the same in two of them, and no lock can be
held by a thread that a fork leaves behind.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from gateway.config import ConfigError, Settings
from gateway.descriptors import raise_limit
from gateway.listener import FORCED_SECONDS
from gateway.process import advise, check, quiet_until_ready, start_logging
from gateway.sockets import listen_for_each, url_of
from gateway.telemetry.merging import Reading, Tally
from gateway.workers.channel import Channel, Failed, Silent
from gateway.workers.words import NONE, Ask, Orders, Question

logger = logging.getLogger("prefixgate.workers")

GATHER_SECONDS = 1.0
"""How long a worker may take to say how it is before its last word on it counts."""
RELOAD_SECONDS = 50.0
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Before a worker is started anew that had not run for `MAX_PAUSE`; doubled from time to time."""


def supervise(
    count: int, words: Sequence[str], load: Callable[[], Settings], path: Path | None
) -> int:
    """Run so many workers until a signal says stop.

    Args:
        words: of the command line, without the program's name.
        load: reads the settings.
        path: the config file that it reads, if there is one.

    Returns:
        The exit code.

    Raises:
        ConfigError: something in the settings cannot work.
        CannotListen: the address is in use, or not ours.
    """
    quiet_until_ready()
    settings = load()
    start_logging(settings)
    gateway = check(settings)
    if settings.redis.url is None:
        raise ConfigError(
            f"--workers: {count} need redis.url, which is not set: without Redis each would have "
            "its own prefix index, queues, limits and admin state; set redis.url, or leave "
            "--workers out",
            field="redis.url",
        )
    raise_limit(settings)
    server = settings.server
    sockets = listen_for_each(count, server.host, server.port, "server.host, server.port")
    admin = gateway.listen_for_admins()
    advise(settings, path)
    return asyncio.run(Supervisor(words, sockets, admin).run())


class Worker:
    """One place among the workers, and the process that has it.

    Attributes:
        number: from 1.
        serving: it has said that it serves.
        silent: it did not answer in time when it was last asked.
        standing_in: the worker that takes its connections meanwhile.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.serving = False
        self.silent = False
        self.standing_in: Worker | None = None
        self.channel: Channel | None = None
        self.process: asyncio.subprocess.Process | None = None

    async def ask(self, what: Ask, body: bytes = NONE, timeout: float | None = None) -> bytes:
        """Raises:
        Silent, Failed.
        """
        if self.channel is None:
            raise Silent("does not run")
        return await self.channel.ask(what, body, timeout)


class Supervisor:
    """Args:
    words: of the command line, that workers are started with.
    sockets: to listen on, those of each worker.
    admin: sockets of the admin API, where it has an address of its own.
    """

    def __init__(
        self,
        words: Sequence[str],
        sockets: list[list[socket.socket]],
        admin: list[socket.socket],
    ) -> None:
        self._words = words
        self._sockets = sockets
        self._admin = admin
        self._instance = os.urandom(8).hex()
        self._workers = [Worker(number + 1) for number in range(len(sockets))]
        self._tally = Tally()
        self._exit_code = 0
        self._signals: list[int] = []
        """Those to stop."""
        self._stopping = asyncio.Event()
        self._errands: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Returns:
        The exit code: as one process would have, or that of a worker that could not start.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        for sock in self._sockets[0]:
            logger.info(
                "%d workers on %s, supervisor %d", len(self._workers), url_of(sock), os.getpid()
            )
        try:
            await asyncio.gather(*map(self._keep, self._workers))
        finally:
            for worker in self._workers:
                self._kill(worker)
        return self._exit_code

    # signals

    def _stop(self, number: int) -> None:
        self._signals.append(number)
        if len(self._signals) > 1:
            self._exit_code = 128 + number
            asyncio.get_running_loop().call_later(FORCED_SECONDS, self._kill_all)
        elif number == signal.SIGINT:
            self._exit_code = 128 + number
        self._stopping.set()
        self._close_sockets()
        for worker in self._workers:
            self._tell(worker, Ask.STOP, b"%d" % number)

    def _hang_up(self) -> None:
        for worker in self._workers:
            self._tell(worker, Ask.HANG_UP)

    def _close_sockets(self) -> None:
        """They are the workers' alone then, and connections are refused once those close them."""
        for sock in (*chain(*self._sockets), *self._admin):
            sock.close()

    def _give_up(self, code: int) -> None:
        """A worker cannot start: end all, as fast as they can."""
        if self._stopping.is_set():
            return
        for _ in range(2):
            self._stop(signal.SIGTERM)
        self._exit_code = code

    def _kill_all(self) -> None:
        for worker in self._workers:
            self._kill(worker)

    def _kill(self, worker: Worker) -> None:
        if worker.process is not None and worker.process.returncode is None:
            worker.process.kill()

    # one worker

    async def _keep(self, worker: Worker) -> None:
        """Have a worker run, until all are to stop."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        ever_served = False
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._run(worker)
            ever_served |= worker.serving
            worker.serving = worker.silent = False
            if self._stopping.is_set():
                return
            if not ever_served:
                self._give_up(code if code > 0 else 1)
                return
            if loop.time() - began > MAX_PAUSE:
                pause = 0.0
            how = f"with {code}" if code >= 0 else f"by signal {-code}"
            logger.error("worker %d ended %s; it is started in %g s", worker.number, how, pause)
            self._cover()
            await self._pause(pause)
            pause = min(MAX_PAUSE, pause * 2 or FIRST_PAUSE)

    async def _run(self, worker: Worker) -> int:
        """Start a worker and wait for its end.

        Returns:
            Its exit code; minus a signal's number if that ended it.
        """
        ours, theirs = socket.socketpair()
        places = [[sock.fileno() for sock in place] for place in self._sockets]
        admin = [sock.fileno() for sock in self._admin]
        orders = Orders(worker.number, self._instance, theirs.fileno(), places, admin)
        with theirs:
            worker.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.cli", *self._words),
                *("--as-worker", msgspec.json.encode(orders).decode()),
                pass_fds=(theirs.fileno(), *chain(*places), *admin),
                # Ctrl-C is for the supervisor, which tells them.
                process_group=0,
            )
        worker.channel = Channel(lambda what, body: self._answer(worker, what, body))
        ended = await worker.channel.open(ours)
        for number in self._signals:  # that came while it was being started
            self._tell(worker, Ask.STOP, b"%d" % number)
        code = await worker.process.wait()
        await ended
        worker.channel = worker.process = None
        self._tally.gone(worker.number)
        return code

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _serves(self, worker: Worker) -> None:
        logger.info("worker %d serves", worker.number)
        worker.serving = True
        if worker.standing_in is not None:
            self._tell(worker.standing_in, Ask.STAND_DOWN, b"%d" % worker.number)
            worker.standing_in = None
        self._cover()

    def _cover(self) -> None:
        """Have others take the connections of workers that do not serve."""
        if self._stopping.is_set():
            return
        serving = [worker for worker in self._workers if worker.serving]
        for worker in self._workers:
            if worker.serving or not serving:
                continue
            if worker.standing_in is None or not worker.standing_in.serving:
                worker.standing_in = serving[worker.number % len(serving)]
                self._tell(worker.standing_in, Ask.STAND_IN, b"%d" % worker.number)

    def _tell(self, worker: Worker, what: Ask, body: bytes = NONE) -> None:
        """Without waiting for it to be done."""
        task = asyncio.create_task(self._told(worker, what, body))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _told(self, worker: Worker, what: Ask, body: bytes) -> None:
        try:
            await worker.ask(what, body)
        except Silent:
            pass  # its end is seen elsewhere
        except Failed as error:
            logger.error("worker %d, %s: %s", worker.number, what, error)

    # what workers ask

    async def _answer(self, asker: Worker, what: str, body: bytes) -> bytes:
        match what:
            case Ask.SERVING:
                self._serves(asker)
                return NONE
            case Ask.PAGE:
                return await self._page()
            case Ask.OTHERS:
                question = msgspec.msgpack.decode(body, type=Question)
                return msgspec.msgpack.encode(await self._others(asker, question))
            case _:
                raise Failed(f"does not know what {what!r} is")

    async def _page(self) -> bytes:
        serving = [worker for worker in self._workers if worker.serving]
        await asyncio.gather(*map(self._read, serving))
        silent = sum(worker.silent for worker in self._workers)
        snapshot = self._tally.snapshot(
            {
                "serving": sum(worker.serving for worker in self._workers) - silent,
                "silent": silent,
                "starting": sum(not worker.serving for worker in self._workers),
            }
        )
        return snapshot.render()

    async def _read(self, worker: Worker) -> None:
        try:
            answer = await worker.ask(Ask.READING, timeout=GATHER_SECONDS)
        except (Silent, Failed) as error:
            if not worker.silent and worker.serving:
                logger.warning("worker %d %s: its last metrics count", worker.number, error)
            worker.silent = worker.serving
            return
        worker.silent = False
        self._tally.report(worker.number, msgspec.msgpack.decode(answer, type=Reading))

    async def _others(self, asker: Worker, question: Question) -> list[bytes]:
        timeout = RELOAD_SECONDS if question.ask is Ask.RELOAD else GATHER_SECONDS

        async def answer(worker: Worker) -> bytes | None:
            try:
                return await worker.ask(question.ask, question.body, timeout)
            except (Silent, Failed) as error:
                logger.info("worker %d, %s: %s", worker.number, question.ask, error)
                return None

        others = [each for each in self._workers if each.serving and each is not asker]
        answers = await asyncio.gather(*map(answer, others))
        return [each for each in answers if each is not None]
