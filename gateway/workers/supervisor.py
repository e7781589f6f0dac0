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
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from gateway.config import ConfigError, Settings
from gateway.descriptors import raise_limit
from gateway.listener import FORCED_SECONDS
from gateway.process import advise, begin
from gateway.sockets import listen_for_each, url_of
from gateway.telemetry.merging import Reading, Tally
from gateway.workers.channel import Failed, Silent
from gateway.workers.child import Child
from gateway.workers.words import NONE, Ask, Question

logger = logging.getLogger("prefixgate.workers")

GATHER_SECONDS = 2.0
"""How long a worker may take to say how it is before its last word on it counts."""
RELOAD_SECONDS = 50.0
FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Seconds before a worker is started anew: the first that follows a quick end, and the most. They
double until one has run for longer than the most."""


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
    settings, gateway = begin(load)
    if settings.redis.url is None:
        raise ConfigError(
            f"--workers: {count} processes need redis.url, which is not set: without Redis each "
            "would have its own prefix index, queues, limits and admin state; set redis.url, or "
            "leave --workers out",
            field="redis.url",
        )
    raise_limit(settings)
    server = settings.server
    sockets = listen_for_each(count, server.host, server.port, "server.host, server.port")
    admin = gateway.listen_for_admins()
    advise(settings, path)
    return asyncio.run(Supervisor(words, sockets, admin).run())


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
        self._workers = [Child(number + 1) for number in range(len(sockets))]
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
            self._kill_all()
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
            worker.kill()

    # one worker

    async def _keep(self, worker: Child) -> None:
        """Have a worker run, until all are to stop."""
        loop = asyncio.get_running_loop()
        pause = 0.0
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._run(worker)
            if self._stopping.is_set():
                return
            if not worker.has_served:
                self._give_up(code if code > 0 else 1)
                return
            if loop.time() - began > MAX_PAUSE:
                pause = 0.0
            how = f"with {code}" if code >= 0 else f"by signal {-code}"
            logger.error("worker %d ended %s; it is started in %g s", worker.number, how, pause)
            self._cover()
            await self._pause(pause)
            pause = min(MAX_PAUSE, pause * 2 or FIRST_PAUSE)

    async def _run(self, worker: Child) -> int:
        """Start a worker and wait for its end.

        Returns:
            Its exit code; minus a signal's number if that ended it.
        """

        async def answer(what: str, body: bytes) -> bytes:
            return await self._answer(worker, what, body)

        try:
            ended = await worker.start(
                self._words, self._instance, self._sockets, self._admin, answer
            )
        except OSError as error:
            logger.error("worker %d cannot be started: %s", worker.number, error)
            return 1
        for number in self._signals:  # that came while it was being started
            self._tell(worker, Ask.STOP, b"%d" % number)
        await ended
        code = await worker.exit_code()
        self._tally.gone(worker.number)
        return code

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    def _serves(self, worker: Child) -> None:
        logger.info("worker %d serves", worker.number)
        worker.serving = worker.has_served = True
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

    def _tell(self, worker: Child, what: Ask, body: bytes = NONE) -> None:
        """Without waiting for it to be done."""
        task = asyncio.create_task(self._told(worker, what, body))
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)

    async def _told(self, worker: Child, what: Ask, body: bytes) -> None:
        try:
            await worker.ask(what, body)
        except Silent:
            pass  # its end is seen elsewhere
        except Failed as error:
            logger.error("worker %d, %s: %s", worker.number, what, error)

    # what workers ask

    async def _answer(self, asker: Child, what: str, body: bytes) -> bytes:
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

    async def _read(self, worker: Child) -> None:
        try:
            answer = await worker.ask(Ask.READING, timeout=GATHER_SECONDS)
        except (Silent, Failed) as error:
            if not worker.silent and worker.serving:
                logger.warning("worker %d %s: its last metrics count", worker.number, error)
            worker.silent = worker.serving
            return
        worker.silent = False
        if worker.serving:  # otherwise it has ended meanwhile, and been counted among those
            self._tally.report(worker.number, msgspec.msgpack.decode(answer, type=Reading))

    async def _others(self, asker: Child, question: Question) -> list[bytes]:
        timeout = RELOAD_SECONDS if question.ask is Ask.RELOAD else GATHER_SECONDS

        async def answer(worker: Child) -> bytes | None:
            try:
                return await worker.ask(question.ask, question.body, timeout)
            except (Silent, Failed) as error:
                logger.info("worker %d, %s: %s", worker.number, question.ask, error)
                return None

        others = [each for each in self._workers if each.serving and each is not asker]
        answers = await asyncio.gather(*map(answer, others))
        return [each for each in answers if each is not None]
