"""How replicas count API keys' use together, and what holds while they cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count
from typing import Any

from gateway.config import KeyLimits, WithoutRedis
from gateway.http.errors import Overloaded
from gateway.shared.records import Commands
from gateway.types import Clock


class LimitsUnknown(Overloaded):
    def __init__(self) -> None:
        super().__init__(
            "The limits of this API key cannot be looked up.",
            status=503,
            code="limits_unavailable",
            retry_after=1,
        )


class QuotaSharing:
    """What all keys' counts have in common.

    Args:
        commands: to Redis.
        replica: names this process, as no other.
        timeout: seconds that a request waits for Redis, at most.
        lease: seconds after which a replica that says nothing has no requests under way.
        replicas: that are sure to be there, before Redis has told of any.

    Attributes:
        without_redis: may be assigned anew at any time.
        replicas: that there were when Redis was last there.
        numbers: of statements.
        decided_shared, decided_alone: requests that were let in or refused by what all replicas
            have used, or by what this one has.
    """

    def __init__(
        self,
        commands: Commands,
        replica: str,
        *,
        without_redis: WithoutRedis,
        timeout: float,
        lease: float,
        clock: Clock,
        replicas: int = 1,
    ) -> None:
        self.commands = commands
        self.replica = replica
        self.without_redis = without_redis
        self.timeout = timeout
        self.lease = lease
        self.clock = clock
        self.replicas = replicas
        self.numbers = count(1)
        self.decided_shared = 0
        self.decided_alone = 0
        self._failed = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def asks(self) -> bool:
        """Whether Redis is asked."""
        return self.commands.up

    @property
    def local(self) -> bool:
        """Whether limits are of this replica alone, for now."""
        return self._failed or not self.commands.up

    def failed(self) -> None:
        """Redis did not answer, or with an error."""
        self._failed = True

    def succeeded(self) -> None:
        self._failed = False

    def alone(self, limits: KeyLimits) -> KeyLimits:
        """What this replica may let in without Redis.

        Raises:
            LimitsUnknown: nothing.
        """
        if self.without_redis is WithoutRedis.REFUSE:
            raise LimitsUnknown
        return self.share(limits)

    def share(self, limits: KeyLimits) -> KeyLimits:
        """What headers tell then."""
        if self.without_redis is not WithoutRedis.SHARE or self.replicas == 1:
            return limits
        return KeyLimits(
            requests_per_minute=self._share(limits.requests_per_minute),
            tokens_per_minute=self._share(limits.tokens_per_minute),
            max_concurrent=self._share(limits.max_concurrent),
        )

    def _share(self, limit: int | None) -> int | None:
        return None if limit is None else max(1, limit // self.replicas)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self, seconds: float) -> None:
        """Wait for what is under way."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
