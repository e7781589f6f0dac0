"""API keys' limits over several replicas, against a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.config import KeyLimits, Redis, WithoutRedis
from gateway.http.errors import RequestError
from gateway.http.quota_sharing import LimitsUnknown, Sharing
from gateway.http.quotas import WINDOW, Limit, RateLimited, Reservation
from gateway.http.shared_quotas import SharedQuotas
from gateway.http.shared_use import LATE, SharedUse
from gateway.shared.link import Link
from gateway.shared.records import Away
from tests.harness.redis_server import RedisServer

REPLICAS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Script:
    """`Commands` of a replica that, once cut, has all it asks come to nothing.

    Attributes:
        asked: scripts that it sent.
        late: replies are held back until it is set.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.cut = False
        self.asked = 0
        self.late: asyncio.Event | None = None

    @property
    def up(self) -> bool:
        return not self.cut and self.link.up

    def key(self, *parts: str) -> bytes:
        return self.link.key(*parts)

    async def call(self, *words: Any, timeout: float | None = None) -> Any:
        return await self.link.call(*words, timeout=timeout)

    async def run(
        self, script: str, keys: list[bytes], words: list[Any], timeout: float | None = None
    ) -> Any:
        if self.cut:
            raise Away("cut")
        self.asked += 1
        reply = await self.link.run(script, keys, words, timeout)
        if self.late is not None:
            await self.late.wait()
        return reply


class Replica:
    """One of several, in one process, with a link of its own. Its time can be moved."""

    def __init__(self, number: int, server: RedisServer, lease: float) -> None:
        self.ahead = 0.0
        self.link = Link(Redis(url=server.url, namespace="quotas", timeout=2.0), self.clock)
        self.script = Script(self.link)
        self.sharing = Sharing(
            self.script,
            f"replica-{number}",
            without_redis=WithoutRedis.SHARE,
            timeout=2.0,
            lease=lease,
            clock=self.clock,
        )
        self.quotas = SharedQuotas(self.sharing, lambda: REPLICAS)

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.ahead

    def use(self, limits: KeyLimits) -> SharedUse:
        return self.quotas.new_use("key", limits)


@asynccontextmanager
async def running(
    server: RedisServer, replicas: int = REPLICAS, lease: float = 10.0
) -> AsyncIterator[list[Replica]]:
    server.command("FLUSHALL")
    found = [Replica(number, server, lease) for number in range(replicas)]
    for each in found:
        await each.link.start()
        assert each.link.up
        each.quotas.start()
    try:
        yield found
    finally:
        for each in found:
            await each.quotas.stop()
            await each.link.stop()


async def let_in(use: SharedUse, replica: Replica, tokens: int = 0) -> Reservation | Limit:
    """What a request is given, or which limit held it back."""
    reservation = None
    try:
        reservation = use.enter(replica.clock())
        asked = reservation.reserve(tokens, replica.clock())
        if asked is not None:
            await asked
    except RateLimited as error:
        if reservation is not None:
            reservation.settle(0, replica.clock())
        return error.limit
    return reservation


async def burst(
    replicas: list[Replica], limits: KeyLimits, each: int = 10, tokens: int = 0
) -> list[Reservation | Limit]:
    """As many requests at every replica, all at once."""
    return await asyncio.gather(
        *(
            let_in(use, replica, tokens)
            for replica in replicas
            for use in [replica.use(limits)]
            for _ in range(each)
        )
    )


def passed(results: list[Reservation | Limit]) -> int:
    return sum(not isinstance(result, Limit) for result in results)


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for something that comes; half a minute at most."""
    async with asyncio.timeout(30):
        while True:
            found = holds()
            if found if isinstance(found, bool) else await found:
                return
            await asyncio.sleep(0.01)


def cut(replicas: list[Replica]) -> None:
    for each in replicas:
        each.script.cut = True
        each.sharing.without_redis = WithoutRedis.FULL


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        (KeyLimits(requests_per_minute=10), 0),
        (KeyLimits(max_concurrent=10), 0),
        (KeyLimits(tokens_per_minute=1000), 100),
    ],
)
def test_a_limit_is_one_limit_for_all_replicas(
    server: RedisServer, limits: KeyLimits, tokens: int
) -> None:
    async def run(together: bool) -> int:
        async with running(server) as replicas:
            if not together:
                cut(replicas)
            return passed(await burst(replicas, limits, tokens=tokens))

    assert asyncio.run(run(True)) == 10
    assert asyncio.run(run(False)) == 10 * REPLICAS


def test_Q13_a_window_ends_although_refused_requests_keep_coming(server: RedisServer) -> None:
    pass
