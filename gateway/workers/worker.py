"""One of several processes of a gateway: what differs from a process that is alone.

It listens on sockets that it inherits, obeys its supervisor instead of signals, and ends when that
is gone.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import uvicorn

from gateway.admin.openapi import Operation
from gateway.admin.operations import AdminApi
from gateway.app import Gateway
from gateway.config import ConfigError, Settings
from gateway.control import GatewayControl
from gateway.fleet.fleet import UnknownBackend
from gateway.listener import Listener
from gateway.process import check, hang_up, listener_config, prepare, start_logging
from gateway.telemetry.merging import reading_of
from gateway.workers.channel import Channel, Failed
from gateway.workers.siblings import Siblings
from gateway.workers.words import NONE, AdminRead, Ask, Orders

logger = logging.getLogger("prefixgate.workers")

SETTLE_SECONDS = 2.0
"""How long backends may take to answer their first probes before clients are let in anyway."""


def work(orders: Orders, load: Callable[[], Settings], path: Path | None) -> int:
    """Run until the supervisor says stop, or ends.

    Returns:
        The exit code.

    Raises:
        ConfigError: something in the settings cannot work.
    """
    settings = load()
    start_logging(settings, f"worker {orders.number}: ")
    gateway = check(settings, orders.instance, len(orders.sockets))
    sockets = [[socket.socket(fileno=each) for each in place] for place in orders.sockets]
    gateway.listen_for_admins([socket.socket(fileno=each) for each in orders.admin])
    gateway.open_logs()
    prepare(gateway, load, path)
    channel = socket.socket(fileno=orders.channel)
    listener = WorkerListener(listener_config(gateway), gateway, orders.number, sockets, channel)
    listener.run(sockets[orders.number - 1])
    return listener.exit_code


class WorkerListener(Listener):
    """Args:
    number: of this worker, from 1.
    sockets: those of each worker, in the order of their numbers.
    channel: to the supervisor.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        gateway: Gateway,
        number: int,
        sockets: list[list[socket.socket]],
        channel: socket.socket,
    ) -> None:
        super().__init__(config, gateway)
        self._gateway = gateway
        self._number = number
        self._sockets = sockets
        self._socket = channel
        self._standing_in: dict[int, list[asyncio.Server]] = {}
        self._reads: dict[str, Operation] = {
            operation.id: operation
            for operation in AdminApi(GatewayControl(gateway)).operations()
            if operation.merge is not None
        }

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield  # they are the supervisor's, and blocked here

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        channel = Channel(self._answer)
        supervisor = await channel.open(self._socket)
        supervisor.add_done_callback(self._abandoned)
        self._gateway.siblings = Siblings(channel)
        await super().startup(sockets)
        await channel.ask(Ask.SERVING)

    async def settle(self) -> None:
        """Clients cannot see that this one of the workers is not ready, and others can serve them
        until it is: until it has asked its backends once."""
        fleet = self._gateway.fleet
        discovery = self._gateway.settings.discovery
        await self._until(
            lambda: fleet.knows_models() or not (any(fleet) or discovery.sources), SETTLE_SECONDS
        )

    def accept_no_more(self) -> None:
        super().accept_no_more()
        for number in tuple(self._standing_in):
            self._stand_down(number)
        # As long as one process has a socket, connections to it are not refused.
        for place in self._sockets:
            for sock in place:
                sock.close()

    def _abandoned(self, _: object) -> None:
        """Nobody would start it anew, nor tell it to stop; and its port is wanted."""
        if not self.should_exit:
            logger.error("the supervisor is gone: ending")
        for _ in range(2):
            self.handle_exit(signal.SIGTERM, None)

    async def _answer(self, what: str, body: bytes) -> bytes:
        match what:
            case Ask.READING:
                return msgspec.msgpack.encode(reading_of(self._gateway.page.read()))
            case Ask.READ:
                return self._read(msgspec.msgpack.decode(body, type=AdminRead))
            case Ask.RELOAD:
                await self._reload()
            case Ask.HANG_UP:
                hang_up(self._gateway)
            case Ask.STOP:
                self.handle_exit(int(body), None)
            case Ask.STAND_IN:
                await self._stand_in(int(body))
            case Ask.STAND_DOWN:
                self._stand_down(int(body))
            case _:
                raise Failed(f"does not know what {what!r} is")
        return NONE

    def _read(self, read: AdminRead) -> bytes:
        try:
            answer = self._reads[read.operation].handler(read.path, None)
        except UnknownBackend as error:
            raise Failed(str(error)) from None
        assert isinstance(answer, tuple)
        return msgspec.json.encode(answer[1])

    async def _reload(self) -> None:
        reloader = self._gateway.reloader
        if reloader is not None:
            try:
                await reloader.reload()
            except ConfigError as error:
                raise Failed(str(error)) from None

    async def _stand_in(self, number: int) -> None:
        if self.should_exit or number in self._standing_in:
            return
        self._standing_in[number] = []
        servers = [await self.accept_on(sock.dup()) for sock in self._sockets[number - 1]]
        if number in self._standing_in:
            self._standing_in[number] = servers
        else:  # told to stand down meanwhile
            for server in servers:
                server.close()

    def _stand_down(self, number: int) -> None:
        for server in self._standing_in.pop(number, ()):
            server.close()
