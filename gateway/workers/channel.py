"""What the supervisor and one worker say to each other, over a socket pair.

Either side asks, and the other answers in whatever order it likes. The end of either process is
the end of the channel, which the other one sees at once.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable

import msgspec

logger = logging.getLogger("prefixgate.workers")

MAX_UNANSWERED = 64
"""Questions to a process that does not answer. Beyond them none is sent."""

_SIZE = struct.Struct("!I")


class Silent(Exception):
    """The other process did not answer in time, or has ended."""


class Failed(Exception):
    """The other process could not do what it was asked; the message says why."""


class Frame(msgspec.Struct, array_like=True, frozen=True):
    """One message.

    Attributes:
        id: of a question and of its answer; the two sides count for themselves.
        what: is asked for; None in an answer.
        body: of the question or answer.
        error: why there is no answer.
    """

    id: int
    what: str | None
    body: bytes
    error: str | None = None


Answer = Callable[[str, bytes], Awaitable[bytes]]
"""Takes what is asked for and the question's body. Raises Failed where there is no answer."""


class Channel:
    """One side of it. To be made and used on the event loop.

    Args:
        answer: answers the other side's questions, each in a task of its own.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._last_id = 0
        self._answering: set[asyncio.Task[None]] = set()
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None

    async def open(self, sock: socket.socket) -> asyncio.Task[None]:
        """Begin to listen and to speak.

        Args:
            sock: one end of a pair of Unix stream sockets; it is taken over.

        Returns:
            Done once the other process is gone and all that it had said was heard.
        """
        sock.setblocking(False)
        reader, self._writer = await asyncio.open_unix_connection(sock=sock)
        self._listening = asyncio.create_task(self._listen(reader))
        return self._listening

    async def ask(self, what: str, body: bytes = b"", timeout: float | None = None) -> bytes:
        """Args:
            timeout: seconds to wait for the answer at most; None for as long as the other runs.

        Raises:
            Silent, Failed.
        """
        if self._listening is None or self._listening.done():
            raise Silent("has ended")
        if len(self._asked) >= MAX_UNANSWERED:
            raise Silent(f"owes {MAX_UNANSWERED} answers")
        self._last_id += 1
        id = self._last_id
        # It stays until it is answered, also when nobody waits any longer: only so is it known how
        # many are not.
        self._asked[id] = answer = asyncio.get_running_loop().create_future()
        self._send(Frame(id, what, body))
        try:
            return await asyncio.wait_for(answer, timeout)
        except TimeoutError:
            raise Silent(f"did not answer within {timeout:g} s") from None

    def _send(self, frame: Frame) -> None:
        assert self._writer is not None
        data = msgspec.msgpack.encode(frame)
        self._writer.write(_SIZE.pack(len(data)) + data)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        decode = msgspec.msgpack.Decoder(Frame).decode
        try:
            while True:
                (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
                frame = decode(await reader.readexactly(size))
                if frame.what is None:
                    self._answered(frame)
                else:
                    task = asyncio.create_task(self._reply(frame.id, frame.what, frame.body))
                    self._answering.add(task)
                    task.add_done_callback(self._answering.discard)
        except (asyncio.IncompleteReadError, ConnectionError, msgspec.DecodeError):
            pass  # it has ended, perhaps in the middle of a word, or speaks another version's
        finally:
            for answer in self._asked.values():
                if not answer.done():
                    answer.set_exception(Silent("has ended"))
            self._asked.clear()
            if self._writer is not None:
                self._writer.close()

    def _answered(self, frame: Frame) -> None:
        answer = self._asked.pop(frame.id, None)
        if answer is None or answer.done():
            return
        if frame.error is None:
            answer.set_result(frame.body)
        else:
            answer.set_exception(Failed(frame.error))

    async def _reply(self, id: int, what: str, body: bytes) -> None:
        try:
            answer = Frame(id, None, await self._answer(what, body))
        except Failed as error:
            answer = Frame(id, None, b"", str(error))
        except Exception as error:
            logger.exception("%r could not be answered", what)
            answer = Frame(id, None, b"", f"failed with {type(error).__name__}")
        if self._writer is not None and not self._writer.is_closing():
            self._send(answer)
