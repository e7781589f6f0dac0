"""A bad network: passes bytes on between two peers, late, in drops, or only so many of them.

On a thread and event loop of its own, as the fake backend. Each direction has its own knobs.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType

_READ = 64 * 1024


class Stop(StrEnum):
    """What happens once a direction has passed on all it may."""

    FIN = "fin"
    """Both connections are closed."""
    RST = "rst"
    """Both connections are reset."""
    HALF = "half"
    """The receiver sees the end of what is sent to it; the other direction goes on."""
    FREEZE = "freeze"
    """Nothing: the connections stay open, and no more is read."""


@dataclass(frozen=True, slots=True)
class Way:
    """How one direction carries bytes.

    Attributes:
        delay: seconds that each read is held.
        segment: bytes that go out at a time; None for as many as have come.
        gap: seconds between two of these.
        stop_after: bytes of each connection that pass; None for all. With 0 the connection is
            made, and the stop is at the first byte.
        stop: what happens then.
    """

    delay: float = 0.0
    segment: int | None = None
    gap: float = 0.0
    stop_after: int | None = None
    stop: Stop = Stop.FIN


class TcpProxy:
    """Usable as a context manager.

    Args:
        port: on loopback, where it connects to.

    Attributes:
        up: from who connects to where it connects; as all of these it may be changed while the
            proxy runs, and holds for the connections that are made from then on.
        down: the other direction.
        connections: how many were made.
        passed_up, passed_down: bytes, over all connections.
    """

    def __init__(self, port: int) -> None:
        self.up = Way()
        self.down = Way()
        self.connections = 0
        self.passed_up = 0
        self.passed_down = 0
        self._target = port
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024)
        )
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def behave(self, *, up: Way | None = None, down: Way | None = None) -> None:
        """Carry what comes on new connections like this; a direction that is not named, well."""
        self.up, self.down = up or Way(), down or Way()

    def stop(self) -> None:
        """Refuse connections from now on and reset the ones there are."""
        if self._loop.is_closed():
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __enter__(self) -> TcpProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        up, down = self.up, self.down
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(far_writer)
            for each in writers:
                _socket(each).setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                each.transport.set_write_buffer_limits(0)  # drained is handed to the kernel
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(reader, far_writer, up, writers, upward=True))
                ways.create_task(self._carry(far_reader, writer, down, writers, upward=False))
            _close(writers)
        except (ExceptionGroup, OSError):
            _close(writers)  # a direction has stopped, or a peer has gone: so does the other one
        except asyncio.CancelledError:
            _reset(writers)
        finally:
            self._tasks.discard(task)

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Way,
        writers: list[asyncio.StreamWriter],
        *,
        upward: bool,
    ) -> None:
        """Raises:
        _Stopped: both connections are done with.
        OSError: a peer has gone.
        """
        left = way.stop_after
        while data := await reader.read(_READ):
            await asyncio.sleep(way.delay)
            if left is not None:
                data = data[:left]
                left -= len(data)
            await _send(writer, data, way)
            if upward:
                self.passed_up += len(data)
            else:
                self.passed_down += len(data)
            if left == 0:
                await self._end(way.stop, reader, writer, writers)
                return
        writer.write_eof()

    async def _end(
        self,
        stop: Stop,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        writers: list[asyncio.StreamWriter],
    ) -> None:
        if stop is Stop.FREEZE:
            await asyncio.Event().wait()
        if stop is Stop.HALF:
            writer.write_eof()
            while await reader.read(_READ):
                pass
            return
        if stop is Stop.RST:
            _reset(writers)
        raise _Stopped


class _Stopped(Exception):
    pass


async def _send(writer: asyncio.StreamWriter, data: bytes, way: Way) -> None:
    """Hand all of it to the kernel."""
    step = way.segment or len(data) or 1
    for at in range(0, len(data), step):
        if at:
            await asyncio.sleep(way.gap)
        writer.write(data[at : at + step])
        await writer.drain()


def _socket(writer: asyncio.StreamWriter) -> socket.socket:
    found: socket.socket = writer.get_extra_info("socket")
    return found


def _close(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        writer.close()


def _reset(writers: list[asyncio.StreamWriter]) -> None:
    for writer in writers:
        with contextlib.suppress(OSError):  # closed already
            linger = struct.pack("ii", 1, 0)
            _socket(writer).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
