"""The other workers, as one of them reaches them: through the supervisor."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from gateway.workers.channel import Channel, Failed, Silent
from gateway.workers.words import NONE, AdminRead, Ask, Question

logger = logging.getLogger("prefixgate.workers")

READ_SECONDS = 5.0
"""How long the supervisor may take to answer for all. It leaves out who is slower than this."""
RELOAD_SECONDS = 60.0


class Siblings:
    """Satisfies `gateway.admin.api.Others`.

    Args:
        channel: to the supervisor.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def metrics(self) -> bytes:
        """The metrics page of all workers, this one included.

        Raises:
            ConnectionError: the supervisor does not answer. One worker's numbers in place of all
                would look as if counters had fallen.
        """
        try:
            return await self._channel.ask(Ask.PAGE, NONE, READ_SECONDS)
        except (Silent, Failed) as error:
            raise ConnectionError(f"The supervisor of the workers {error}.") from None

    async def answers(self, operation: str, path: Mapping[str, str]) -> list[bytes]:
        read = msgspec.msgpack.encode(AdminRead(operation, dict(path)))
        return await self._ask_others(Question(Ask.READ, read), READ_SECONDS)

    async def reload(self) -> None:
        """Have the config file loaded by the others too. What is wrong with it they would find as
        this one did; they log it."""
        await self._ask_others(Question(Ask.RELOAD), RELOAD_SECONDS)

    async def _ask_others(self, question: Question, timeout: float) -> list[bytes]:
        try:
            answer = await self._channel.ask(Ask.OTHERS, msgspec.msgpack.encode(question), timeout)
        except (Silent, Failed) as error:
            logger.warning("%s for this worker only: the supervisor %s", question.ask, error)
            return []
        return msgspec.msgpack.decode(answer, type=list[bytes])
