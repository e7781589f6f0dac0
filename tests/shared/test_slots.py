"""Limits that several replicas hold together, in a real Redis, measured at the backends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest
import redis.asyncio
from redis.exceptions import RedisError

from gateway.config import Scheduling
from gateway.scheduling.allotment import Allotments
from gateway.scheduling.lease import Lease
from gateway.scheduling.pool import Pool
from gateway.shared.records import Away
from gateway.shared.slots import SETTLING, Ask, Slots
from gateway.types import Role
from loadtests.redis.server import RedisServer
from policies.registry import build
from tests.scheduling.virtual import DECODE, Caller, ask, limits, load_of

PATIENCE = 20.0
LEASE = 1.0


class Client:
    """`Commands` over one connection.

    Attributes:
        up: to be set.
        meanwhile: happens between Redis's next answer and its arrival.
        sent: the scripts that were run.
    """

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self.up = True
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self.sent: list[tuple[str, list[bytes], list[Any]]] = []
        self._redis = redis.asyncio.Redis.from_url(server.url)
        self._namespace = namespace

    def key(self, *parts: str) -> bytes:
        return ":".join((f"{{{self._namespace}}}", *parts)).encode()

    async def call(self, *words: Any, timeout: float | None = None) -> Any:
        return await self._send(*words)

    async def run(
        self, script: str, keys: list[bytes], words: list[Any], timeout: float | None = None
    ) -> Any:
        self.sent.append((script, keys, words))
        answer = await self._send("EVAL", script, len(keys), *keys, *words)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return answer

    async def close(self) -> None:
        await self._redis.aclose()

    async def _send(self, *words: Any) -> Any:
        if not self.up:
            raise Away
        try:
            return await self._redis.execute_command(*words)
        except (RedisError, OSError) as error:
            raise Away from error


class Backend:
    """Counts what is in flight, whoever sent it."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.most = 0


class Replica:
    """A pool, its slots and its callers. It hears nothing of the others' load."""

    def __init__(
        self,
        number: int,
        client: Client,
        backends: dict[str, Backend],
        scheduling: Scheduling,
        *,
        shared: bool = True,
        known: int = 1,
        lease: float = LEASE,
    ) -> None:
        self.client = client
        self.done = 0
        self.waits: list[float] = []
        self._random = Random(number)
        self._backends = backends
        clock = asyncio.get_running_loop().time
        self.loads = {id: load_of(id) for id in backends}
        self.allotments = Allotments(lambda: scheduling, lambda: known)
        self.slots = Slots(client, bytes([number] * 8), self.allotments, lease, lambda: known)
        self.allotments.wake = self.slots.wake
        self.pool = Pool("m", Role.UNIFIED, build("least_load", {}), scheduling, clock)
        self.pool.set_backends(list(self.loads.values()))
        if shared:
            for load in self.loads.values():
                self.allotments.attach(load)

    def send(self, seconds: float = 0.01) -> None:
        caller = Caller(ask(DECODE))
        caller.granted = lambda lease: self._granted(lease, seconds)
        caller.ticket.on_grant = caller.granted
        caller.submit(self.pool)

    def keep_sending(self, callers: int) -> None:
        for _ in range(callers):
            self.send(self._random.uniform(0.0, 0.02))

    def _granted(self, lease: Lease, seconds: float) -> None:
        self.waits.append(lease.queue_seconds)
        backend = self._backends[lease.backend_id]
        backend.in_flight += 1
        backend.most = max(backend.most, backend.in_flight)

        def end() -> None:
            backend.in_flight -= 1
            self.done += 1
            lease.release()

        asyncio.get_running_loop().call_later(seconds, end)

    def held(self, id: str = "a") -> int:
        own = self.loads[id].of(DECODE)
        assert own.allotment is not None
        return max(own.allotment.allowed, own.own)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def few(count: int) -> Scheduling:
    return limits(decode={"max_requests": count, "max_wait": PATIENCE})


@pytest.fixture(scope="module")
def server() -> Any:
    with RedisServer() as running:
        yield running


class Fleet:
    """Replicas that share what one namespace of Redis holds."""

    def __init__(
        self,
        server: RedisServer,
        name: str,
        count: int,
        limit: int,
        ids: str = "ab",
        **options: Any,
    ) -> None:
        self.backends = {id: Backend() for id in ids}
        self._server, self._name = server, name
        self._options = {"scheduling": few(limit), **options}
        self.replicas = [self.make(number) for number in range(count)]

    def make(self, number: int) -> Replica:
        client = Client(self._server, self._name)
        return Replica(number + 1, client, self.backends, **self._options)

    async def __aenter__(self) -> Fleet:
        for replica in self.replicas:
            replica.slots.start()
        self._ticks = asyncio.create_task(self._tick())
        return self

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            for replica in self.replicas:
                replica.pool.expire()

    async def __aexit__(self, *error: object) -> None:
        self._ticks.cancel()
        for replica in self.replicas:
            replica.pool.close()
            await replica.slots.stop()
            await replica.client.close()

    @property
    def most(self) -> int:
        return max(backend.most for backend in self.backends.values())


@pytest.mark.parametrize(("count", "limit"), [(2, 1), (2, 3), (4, 2)])
@pytest.mark.parametrize("shared", [True, False])
def test_Q14_replicas_together_never_exceed_a_backends_limit(
    server: RedisServer, count: int, limit: int, shared: bool
) -> None:
    async def run() -> None:
        name = f"Q14-{count}-{limit}-{shared}"
        async with Fleet(server, name, count, limit, shared=shared) as fleet:
            for _ in range(4):
                for replica in fleet.replicas:
                    replica.keep_sending(5)
                await asyncio.sleep(0.02)
            await until(lambda: all(replica.done == 20 for replica in fleet.replicas))
            assert (fleet.most <= limit) == shared

    asyncio.run(run())


def test_nobody_starves_behind_another_that_always_wants_more(server: RedisServer) -> None:
    async def run() -> None:
        async with Fleet(server, "starve", 3, 1, "a") as fleet:
            busy, *others = fleet.replicas
            for _ in range(300):
                busy.send(0.01)
            await until(lambda: busy.done >= 5)
            for other in others:
                other.send()
            await until(lambda: all(other.done for other in others))
            assert fleet.most == 1
            assert busy.pool.depth(DECODE) > 0  # it would have gone on

    asyncio.run(run())


def test_where_the_limit_is_large_nobody_waits(server: RedisServer) -> None:
    async def run() -> None:
        async with Fleet(server, "large", 3, 256, "a") as fleet:
            await until(lambda: all(replica.held() >= 80 for replica in fleet.replicas))
            for replica in fleet.replicas:
                replica.keep_sending(30)
            assert [replica.waits for replica in fleet.replicas] == [[0.0] * 30] * 3
            assert sum(replica.held() for replica in fleet.replicas) <= 256

    asyncio.run(run())


def test_one_that_wants_all_gets_what_the_others_do_not_use(server: RedisServer) -> None:
    async def run() -> None:
        async with Fleet(server, "idle", 2, 16, "a") as fleet:
            one, other = fleet.replicas
            await until(lambda: one.held() == other.held() == 8)
            for _ in range(40):
                one.send(0.3)
            await until(lambda: fleet.backends["a"].in_flight == 16)
            assert other.held() == 0
            assert fleet.most == 16

    asyncio.run(run())


@pytest.mark.parametrize("ends", ["stop", "crash"])
def test_what_a_replica_held_falls_to_the_others(server: RedisServer, ends: str) -> None:
    async def run() -> None:
        async with Fleet(server, f"falls-{ends}", 2, 4, "a") as fleet:
            one, other = fleet.replicas
            await until(lambda: one.held() == other.held() == 2)
            if ends == "crash":
                other.client.up = False
            await other.slots.stop()
            await until(lambda: one.held() == 4)

    asyncio.run(run())


def test_while_redis_is_away_allotments_stay_as_they_are(server: RedisServer) -> None:
    async def run() -> None:
        async with Fleet(server, "away", 2, 4, "a") as fleet:
            await until(lambda: all(replica.held() == 2 for replica in fleet.replicas))
            for replica in fleet.replicas:
                replica.client.up = False
                replica.keep_sending(10)
            await until(lambda: all(replica.done == 10 for replica in fleet.replicas))
            assert fleet.most <= 4
            assert [replica.held() for replica in fleet.replicas] == [2, 2]
            assert [replica.allotments.guessed for replica in fleet.replicas] == [0, 0]

    asyncio.run(run())


def test_nobody_is_left_without_a_slot_for_as_long_as_redis_is_away(server: RedisServer) -> None:
    async def run() -> None:
        async with Fleet(server, "without", 2, 4, "a", known=2) as fleet:
            one, other = fleet.replicas
            await until(lambda: one.held() == other.held() == 2)
            for _ in range(6):
                one.send(PATIENCE)
            await until(lambda: other.held() == 0)
            for replica in fleet.replicas:
                replica.client.up = False
            other.keep_sending(4)
            await until(lambda: other.done == 4)
            assert other.held() == 2
            assert other.allotments.guessed == 1

    asyncio.run(run())


def test_one_that_finds_redis_again_first_does_not_take_what_another_holds(
    server: RedisServer,
) -> None:
    async def run() -> None:
        async with Fleet(server, "first", 2, 4, "a", known=2, lease=30.0) as fleet:
            one, other = fleet.replicas
            await until(lambda: one.held() == other.held() == 2)
            other.client.up = False
            await one.client.call("DEL", one.client.key("slots", "replicas"))
            await one.client.call("DEL", one.client.key("slots", "held"))
            for _ in range(6):
                one.send(SETTLING)
            await until(lambda: one.done == 6)
            assert one.held() == fleet.most == 2
            other.client.up = True
            other.keep_sending(4)
            await until(lambda: other.done == 4)

    asyncio.run(run())


def test_a_replica_that_starts_without_redis_takes_an_even_part(server: RedisServer) -> None:
    async def run() -> None:
        fleet = Fleet(server, "guess", 1, 9, "a", known=3)
        [replica] = fleet.replicas
        replica.client.up = False
        async with fleet:
            replica.keep_sending(5)
            await until(lambda: replica.done == 5)
            assert fleet.most == 3
            assert replica.held() == 3
            assert replica.allotments.guessed == 2  # one a class
            replica.client.up = True
            await until(lambda: replica.held() == 9)
            assert replica.allotments.guessed == 0

    asyncio.run(run())


@pytest.mark.parametrize("lost", ["replicas", "held", "all"])
def test_a_redis_that_lost_something_gives_nothing_away_that_is_held(
    server: RedisServer, lost: str
) -> None:
    async def run() -> None:
        async with Fleet(server, f"lost-{lost}", 2, 4, "a") as fleet:
            one, other = fleet.replicas
            await until(lambda: one.held() == other.held() == 2)
            for _ in range(2):
                other.send(SETTLING + 0.3)
            await until(lambda: fleet.backends["a"].in_flight == 2)
            names = ("replicas", "held") if lost == "all" else (lost,)
            await one.client.call("DEL", *(one.client.key("slots", name) for name in names))
            for _ in range(20):
                one.send()
            await until(lambda: one.done == 20)
            assert fleet.most <= 4

    asyncio.run(run())


def test_a_call_that_is_overtaken_changes_nothing(server: RedisServer) -> None:
    async def run() -> None:
        fleet = Fleet(server, "late", 2, 4, "a")
        one, other = fleet.replicas
        await one.slots.exchange()
        early = one.client.sent[-1]
        await asyncio.sleep(SETTLING)
        await one.slots.exchange()
        assert one.held() == 4
        # It said that nothing was held yet.
        assert await one.client.run(*early) == []
        await other.slots.exchange()
        assert other.held() == 0
        for replica in fleet.replicas:
            await replica.client.close()

    asyncio.run(run())


def test_what_is_held_may_be_used_until_the_answer_is_there(server: RedisServer) -> None:
    async def run() -> None:
        fleet = Fleet(server, "meanwhile", 2, 4, "a")
        one, other = fleet.replicas
        await one.slots.exchange()
        await asyncio.sleep(SETTLING)
        await one.slots.exchange()
        await other.slots.exchange()
        assert (one.held(), other.held()) == (4, 0)
        for _ in range(4):
            other.send()

        async def meanwhile() -> None:
            await other.slots.exchange()
            for _ in range(4):
                one.send()

        one.client.meanwhile = meanwhile
        await one.slots.exchange()
        assert fleet.backends["a"].in_flight == 4
        await until(lambda: one.done == 4)
        for replica in (one, one, other):
            await replica.slots.exchange()
        await until(lambda: other.done > 0)
        assert fleet.most <= 4
        for replica in fleet.replicas:
            await replica.client.close()

    asyncio.run(run())


class Greedy:
    """A holder that always wants more, and uses all that it is given."""

    is_short = True

    def __init__(self) -> None:
        self.allowed = self.turns = 0

    def asks(self) -> list[Ask]:
        return [Ask("a", 2, self.allowed, self.allowed, True)]

    def answered(self, allowed: Sequence[int]) -> None:
        before, [self.allowed] = self.allowed, allowed
        self.turns += self.allowed > before == 0

    def unanswered(self, seconds: float) -> None:
        raise AssertionError


def test_what_does_not_go_into_even_shares_goes_from_one_to_the_next(server: RedisServer) -> None:
    async def run() -> None:
        clients = [Client(server, "rotation") for _ in range(3)]
        holders = [Greedy() for _ in clients]
        slots = [
            Slots(client, bytes([number] * 8), holder, LEASE)
            for number, (client, holder) in enumerate(zip(clients, holders, strict=True))
        ]
        await slots[0].exchange()
        await asyncio.sleep(SETTLING)
        async with asyncio.timeout(PATIENCE):
            while min(holder.turns for holder in holders) < 4:
                for each in slots:
                    await each.exchange()
                    assert sum(holder.allowed for holder in holders) <= 2
                    await asyncio.sleep(0.002)
        assert max(holder.turns for holder in holders) <= 8
        for client in clients:
            await client.close()

    asyncio.run(run())


@pytest.mark.parametrize("lost", ["held", "replicas"])
def test_nothing_is_given_away_where_redis_has_evicted_half_of_what_it_knew(
    server: RedisServer, lost: str
) -> None:
    async def run() -> None:
        async with Fleet(server, f"evict-{lost}", 2, 4, "a") as fleet:
            one, other = fleet.replicas
            await until(lambda: one.held() == other.held() == 2)
            await asyncio.sleep(SETTLING)
            for _ in range(2):
                other.send(SETTLING + 0.3)
            await until(lambda: fleet.backends["a"].in_flight == 2)
            await one.client.call("DEL", one.client.key("slots", lost))
            for _ in range(20):
                one.send()
            await until(lambda: one.done == 20)
            assert fleet.most <= 4

    asyncio.run(run())


JUNK = (
    ("replicas", "ff", "junk"),
    ("replicas", "born", "junk"),
    ("replicas", "last", ""),
    ("held", "born", "junk"),
    ("held", "d a", "junk"),
    ("held", "d a", b"\x81\xa2ff\x01"),
    ("held", "d a", b"\x81\xa2ff\x91\x01"),
    ("held", "d a", b"\xc1"),
)


def test_what_cannot_be_read_counts_as_lost(server: RedisServer) -> None:
    async def spoilt(number: int, key: str, field: str, value: str | bytes) -> None:
        async with Fleet(server, f"junk-{number}", 2, 4, "a") as fleet:
            one, other = fleet.replicas
            await one.client.call("HSET", one.client.key("slots", key), field, value)
            await until(lambda: one.held() == other.held() == 2)
            await one.client.call("HSET", one.client.key("slots", key), field, value)
            for _ in range(10):
                one.send(SETTLING)
            await until(lambda: one.held() == 4)  # it is given again
            await until(lambda: one.done == 10)
            assert fleet.most <= 4

    async def run() -> None:
        async with asyncio.TaskGroup() as side_by_side:
            for number, junk in enumerate(JUNK):
                side_by_side.create_task(spoilt(number, *junk), name=f"{junk}")

    asyncio.run(run())


def test_while_replicas_have_different_limits_the_lowest_holds_and_nobody_starves(
    server: RedisServer,
) -> None:
    async def run() -> None:
        async with Fleet(server, "differ", 2, 40, "a") as fleet:
            before = list(fleet.replicas)
            await until(lambda: all(replica.held() == 20 for replica in before))
            for replica in before:
                for _ in range(300):
                    replica.send(0.02)
            updated = Replica(9, Client(server, "differ"), fleet.backends, few(6))
            fleet.replicas.append(updated)
            updated.slots.start()
            updated.keep_sending(5)
            await until(lambda: updated.done == 5)
            assert all(replica.pool.depth(DECODE) for replica in before)
            await until(lambda: sum(replica.held() for replica in fleet.replicas) <= 6)

    asyncio.run(run())


def test_what_a_replica_held_of_a_backend_that_it_has_no_more_falls_to_the_others(
    server: RedisServer,
) -> None:
    async def run() -> None:
        async with Fleet(server, "removed", 2, 4, "ab") as fleet:
            one, other = fleet.replicas
            await until(lambda: one.held() == other.held() == 2)
            other.pool.set_backends([other.loads["b"]])
            other.allotments.detach(other.loads["a"])
            for _ in range(40):
                one.send(0.3)
            await until(lambda: one.held() == 4)

    asyncio.run(run())


class Named:
    """A holder of limits that are never reached.

    Attributes:
        names: of these.
    """

    is_short = False

    def __init__(self, *names: str) -> None:
        self.names = names

    def asks(self) -> list[Ask]:
        return [Ask(name, 4, 1, 0, wanted=False) for name in self.names]

    def answered(self, allowed: Sequence[int]) -> None:
        pass

    def unanswered(self, seconds: float) -> None:
        raise AssertionError


def test_Z09_backends_that_are_gone_are_forgotten(server: RedisServer) -> None:
    async def run() -> None:
        client = Client(server, "gone")
        holder = Named("kept", *map(str, range(20)))
        slots = Slots(client, bytes(8), holder, 0.02)

        async def held() -> set[bytes]:
            await slots.exchange()
            return set(await client.call("HKEYS", client.key("slots", "held"))) - {b"born"}

        assert len(await held()) == 21
        holder.names = ("kept",)
        async with asyncio.timeout(PATIENCE):
            while len(await held()) > 1:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert await held() == {b"kept"}
        await client.close()

    asyncio.run(run())
