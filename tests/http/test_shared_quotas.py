"""API keys' limits over several replicas, against a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from gateway.config import KeyLimits, Redis, WithoutRedis
from gateway.http.quota_script import QUOTA
from gateway.http.quota_sharing import LimitsUnknown, QuotaSharing
from gateway.http.quotas import WINDOW, Limit, RateLimited, Reservation
from gateway.http.shared_quotas import SharedQuotas
from gateway.http.shared_use import LATE, SharedUse
from gateway.shared.link import Link
from gateway.shared.records import Away
from loadtests.redis.server import RedisServer

REPLICAS = 4
LEASE = 10.0
TIMEOUT = 2.0
"""Of the link and of requests: long, so that a slow machine does not look like a slow Redis."""


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


class Time:
    """One time for the replicas and for Redis, which moves when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Script:
    """`Commands` of a replica. Once cut, it asks nothing.

    Attributes:
        loses: what it sends comes to nothing.
        asked: scripts that it sent.
        held: replies wait until it is set.
    """

    def __init__(self, link: Link, time: Time) -> None:
        self.cut = False
        self.loses = False
        self.asked = 0
        self.held: asyncio.Event | None = None
        self._link = link
        self._time = time

    @property
    def up(self) -> bool:
        return not self.cut and self._link.up

    def key(self, *parts: str) -> bytes:
        return self._link.key(*parts)

    async def call(self, *words: Any, timeout: float | None = None) -> Any:
        return await self._link.call(*words, timeout=timeout)

    async def run(
        self, script: str, keys: list[bytes], words: list[Any], timeout: float | None = None
    ) -> Any:
        if self.cut:
            raise Away("cut")
        self.asked += 1
        if self.loses:
            raise Away("lost")
        timed = script.replace("redis.call('TIME')", f"{{{self._time.now:.3f}, 0}}")
        assert timed != script
        reply = await self._link.run(timed, keys, words, timeout)
        if self.held is not None:
            await self.held.wait()
        return reply


class Replica:
    """One of several, in one process, with a link of its own."""

    def __init__(self, number: int, server: RedisServer, time: Time) -> None:
        self.clock = time
        self.link = Link(Redis(url=server.url, namespace="quotas", timeout=TIMEOUT), time)
        self.script = Script(self.link, time)
        self.sharing = QuotaSharing(
            self.script,
            f"replica-{number}",
            without_redis=WithoutRedis.SHARE,
            timeout=TIMEOUT,
            lease=LEASE,
            clock=time,
        )
        self.quotas = SharedQuotas(self.sharing, lambda: REPLICAS)

    def use(self, limits: KeyLimits) -> SharedUse:
        self._kept = self.quotas.new_use("key", limits)  # as the key does
        return self._kept


@asynccontextmanager
async def running(server: RedisServer, replicas: int = REPLICAS) -> AsyncIterator[list[Replica]]:
    server.command("FLUSHALL")
    time = Time()
    found = [Replica(number, server, time) for number in range(replicas)]
    for each in found:
        await each.link.start()
        assert each.link.up
        each.quotas.start()
    await asyncio.sleep(0)  # the first round, in which they hear how many they are
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


def cut(replicas: list[Replica], without_redis: WithoutRedis = WithoutRedis.FULL) -> None:
    for each in replicas:
        each.script.cut = True
        each.sharing.without_redis = without_redis


async def stated(replicas: list[Replica]) -> None:
    """Wait until Redis knows all that the replicas have to tell."""
    for each in replicas:
        each.quotas.round()
    await until(lambda: not any(each.use(TEN).due(each.clock.now) for each in replicas))


TEN = KeyLimits(requests_per_minute=10)
ARMS = pytest.mark.parametrize("together", [True, False], ids=["together", "cut"])


@ARMS
@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        (TEN, 0),
        (KeyLimits(max_concurrent=10), 0),
        (KeyLimits(tokens_per_minute=1000), 100),
        (KeyLimits(requests_per_minute=30, tokens_per_minute=1000, max_concurrent=20), 100),
    ],
)
def test_a_limit_is_one_limit_for_all_replicas(
    server: RedisServer, limits: KeyLimits, tokens: int, together: bool
) -> None:
    async def run() -> int:
        async with running(server) as replicas:
            if not together:
                cut(replicas)
            return passed(await burst(replicas, limits, tokens=tokens))

    assert asyncio.run(run()) == (10 if together else 10 * REPLICAS)


@ARMS
def test_Q13_windows_end(server: RedisServer, together: bool) -> None:
    async def run() -> list[int]:
        async with running(server) as replicas:
            if not together:
                cut(replicas)
            time, counts = replicas[0].clock, []
            # A full burst, and refused requests all through the window and into the next.
            for _ in range(2 * int(WINDOW) + 1):
                counts.append(passed(await burst(replicas, TEN, each=11)))
                time.now += 1.0 if len(counts) != WINDOW else 1.0 + 2 * LATE
            # Also for one that was refused all the time, as the others had used it all.
            time.now += WINDOW
            return [*counts, passed(await burst(replicas[-1:], TEN))]

    all_at_once = 10 if together else 10 * REPLICAS
    one = [all_at_once] + [0] * (int(WINDOW) - 1)
    assert asyncio.run(run()) == [*one, *one, all_at_once, 10]


@ARMS
def test_Q13_steady_traffic_at_the_limit_never_meets_it(
    server: RedisServer, together: bool
) -> None:
    async def run() -> list[int]:
        async with running(server) as replicas:
            if not together:
                cut(replicas)
            time, counts = replicas[0].clock, []
            for number in range(40):
                replica = replicas[number % REPLICAS]
                counts.append(passed([await let_in(replica.use(TEN), replica)]))
                if number % 10 == 9:  # one more, at the window's end
                    counts.append(passed(await burst(replicas, TEN, each=1)))
                time.now += WINDOW / 10 + LATE / 5
            return counts

    assert asyncio.run(run()) == ([1] * 10 + [0 if together else REPLICAS]) * 4


@ARMS
def test_Q13_around_the_end_of_a_window_comes_at_most_twice_the_limit(
    server: RedisServer, together: bool
) -> None:
    async def run() -> int:
        async with running(server) as replicas:
            if not together:
                cut(replicas)
            time, count = replicas[0].clock, 0
            first = passed(await burst(replicas, TEN, each=1))
            time.now += WINDOW - 0.5
            for _ in range(20):
                count += passed(await burst(replicas, TEN, each=12))
                time.now += 0.1
            return first + count

    assert asyncio.run(run()) == (20 if together else 20 * REPLICAS)


def test_a_window_ends_in_redis_first(server: RedisServer) -> None:
    limits = KeyLimits(tokens_per_minute=1000)

    async def run(seconds: float) -> int:
        async with running(server, 2) as replicas:
            assert passed(await burst(replicas, limits, tokens=100)) == 10
            replicas[0].clock.now += seconds
            return passed(await burst(replicas, limits, tokens=100))

    assert asyncio.run(run(WINDOW - LATE / 2)) == 0
    assert asyncio.run(run(WINDOW + LATE / 2)) == 10


def test_one_that_is_larger_than_the_limit_goes_when_nobody_has_used_any(
    server: RedisServer,
) -> None:
    limits = KeyLimits(tokens_per_minute=1000)

    async def run() -> list[int]:
        async with running(server, 2) as (here, there):
            large = passed(await burst([here], limits, each=1, tokens=5000))
            return [large, passed(await burst([there], limits, each=1, tokens=1))]

    assert asyncio.run(run()) == [1, 0]


@ARMS
def test_what_a_killed_replica_had_under_way_goes_with_its_lease(
    server: RedisServer, together: bool
) -> None:
    limits = KeyLimits(max_concurrent=8)

    async def run() -> list[int]:
        async with running(server) as replicas:
            if not together:
                cut(replicas)
            killed, living, time = replicas[0], replicas[1], replicas[0].clock
            mine = await burst([living], limits, each=2)
            counts = [passed(mine), passed(await burst([killed], limits))]
            killed.script.cut = True
            counts.append(passed(await burst(replicas[2:], limits)))
            for _ in range(4):
                time.now += LEASE / 3
                living.quotas.round()
                if together:
                    await until(lambda: not living.use(limits).due(time.now))
            counts.append(passed(await burst(replicas[2:], limits)))
            # In Redis, too, nothing is left of it when its minute has ended as well.
            key = killed.script.key("limits", "key").decode()
            kept = ("HEXISTS", key, killed.sharing.replica)
            assert server.command(*kept) == (b":1\r\n" if together else b":0\r\n")
            time.now += WINDOW
            await burst(replicas[2:], limits)
            assert server.command(*kept) == b":0\r\n"
            return counts

    assert asyncio.run(run()) == ([2, 6, 0, 6] if together else [2, 8, 16, 0])


def test_one_that_no_longer_waits_gives_back_what_it_is_granted(server: RedisServer) -> None:
    limits = KeyLimits(max_concurrent=1, tokens_per_minute=1000)

    async def run(leaves: bool) -> int:
        async with running(server, 2) as (here, there):
            here.script.held = asyncio.Event()
            use = here.use(limits)
            reservation = use.enter(here.clock())
            asked = reservation.reserve(1000, here.clock())
            assert asked is not None
            waits = asyncio.ensure_future(asked)
            await until(lambda: here.script.asked > 0)
            if leaves:
                waits.cancel()
                reservation.settle(0, here.clock())
            here.script.held.set()
            here.script.held = None
            for _ in range(50 if leaves else 10):
                if passed([await let_in(there.use(limits), there, 1000)]):
                    return 1
                await asyncio.sleep(0.01)
            return 0

    assert asyncio.run(run(leaves=True)) == 1
    assert asyncio.run(run(leaves=False)) == 0


@ARMS
def test_tokens_that_were_not_used_are_given_back_to_all(
    server: RedisServer, together: bool
) -> None:
    limits = KeyLimits(tokens_per_minute=1000)

    async def run() -> list[int]:
        async with running(server, 2) as replicas:
            if not together:
                cut(replicas)
            here, there = replicas
            first = await let_in(here.use(limits), here, 600)
            assert isinstance(first, Reservation)
            before = passed([await let_in(there.use(limits), there, 600)])
            first.settle(100, here.clock())
            first.settle(100, here.clock())  # once is enough
            if together:
                await stated([here])
            return [before, passed([await let_in(there.use(limits), there, 900)])]

    assert asyncio.run(run()) == ([0, 1] if together else [1, 0])


def test_requests_that_come_to_nothing_count_and_need_no_answer(server: RedisServer) -> None:
    async def run(together: bool) -> int:
        async with running(server, 2) as replicas:
            if not together:
                cut(replicas)
            here, there = replicas
            for _ in range(7):
                here.use(TEN).enter(here.clock()).settle(0, here.clock())
            if together:
                assert here.script.asked == 0
                await stated([here])
            return passed(await burst([there], TEN))

    assert asyncio.run(run(True)) == 3
    assert asyncio.run(run(False)) == 10


@pytest.mark.parametrize(
    ("without_redis", "let_through"),
    [(WithoutRedis.SHARE, 8), (WithoutRedis.FULL, 40), (WithoutRedis.REFUSE, 0)],
)
@pytest.mark.parametrize(
    "limits", [TEN, KeyLimits(max_concurrent=10), KeyLimits(tokens_per_minute=1000)]
)
def test_Z04_without_redis_holds_what_the_settings_say(
    server: RedisServer, without_redis: WithoutRedis, let_through: int, limits: KeyLimits
) -> None:
    async def run() -> None:
        async with running(server) as replicas:
            assert not any(each.sharing.local for each in replicas)
            cut(replicas, without_redis)
            if without_redis is WithoutRedis.REFUSE:
                for each in replicas:
                    with pytest.raises(LimitsUnknown):
                        each.use(limits).enter(each.clock())
            else:
                assert passed(await burst(replicas, limits, tokens=100)) == let_through
            for each in replicas:
                assert each.sharing.local
                assert each.sharing.replicas == REPLICAS
                assert each.sharing.decided_shared == 0

    asyncio.run(run())


@ARMS
def test_what_was_let_in_without_redis_is_told_when_it_is_back(
    server: RedisServer, together: bool
) -> None:
    async def run() -> int:
        async with running(server) as replicas:
            cut(replicas, WithoutRedis.SHARE)
            time = replicas[0].clock
            assert passed(await burst(replicas, TEN)) == 8
            server.command("FLUSHALL")
            time.now += 10.0
            for each in replicas:
                each.script.cut = False
            if together:
                await stated(replicas)
            else:
                for each in replicas:
                    each.use(TEN).requests.used = 0
            assert passed(await burst(replicas, TEN)) == (2 if together else 10)
            assert not any(each.sharing.local for each in replicas)
            # It is the window in which they came: it ends when that would have.
            time.now += WINDOW - 10.0 + 2 * LATE
            return passed(await burst(replicas, TEN))

    assert asyncio.run(run()) == 10


@ARMS
def test_what_redis_has_lost_is_told_again(server: RedisServer, together: bool) -> None:
    async def run() -> int:
        async with running(server) as replicas:
            assert passed(await burst(replicas, TEN, each=2)) == 8
            server.command("FLUSHALL")
            replicas[0].clock.now += LEASE / 3 + 0.1
            if together:
                await stated(replicas)
            return passed(await burst(replicas[:1], TEN))

    assert asyncio.run(run()) == (2 if together else 8)


def test_what_was_lost_on_the_way_is_stated_again(server: RedisServer) -> None:
    limits = KeyLimits(max_concurrent=1)

    async def run(comes_back: bool) -> list[int]:
        async with running(server, 2) as (here, there):
            first = await let_in(here.use(limits), here)
            assert isinstance(first, Reservation)
            here.script.loses = True
            before = here.script.asked
            first.settle(0, here.clock())
            await until(lambda: here.script.asked > before and here.sharing.local)
            counts = [passed(await burst([there], limits))]
            here.script.loses = not comes_back
            if comes_back:
                await stated([here])
                assert not here.sharing.local
            return [*counts, passed(await burst([there], limits))]

    assert asyncio.run(run(comes_back=True)) == [0, 1]
    assert asyncio.run(run(comes_back=False)) == [0, 0]


def test_what_was_let_in_meanwhile_is_stated_at_once(server: RedisServer) -> None:
    async def run(meanwhile: int) -> int:
        async with running(server, 2) as (here, there):
            assert passed(await burst([here], TEN, each=1)) == 1
            here.script.cut = True
            assert passed(await burst([here], TEN, each=meanwhile)) == min(1, meanwhile)
            here.script.cut = False
            await stated([here])
            return passed(await burst([there], TEN))

    # Two of ten are its share.
    assert asyncio.run(run(5)) == 8
    assert asyncio.run(run(0)) == 9


def test_a_request_waits_no_longer_than_it_may(server: RedisServer) -> None:
    async def run(wait: float) -> tuple[int, int]:
        async with running(server, 1) as [replica]:
            replica.sharing.timeout = wait
            replica.script.held = asyncio.Event()
            asyncio.get_running_loop().call_later(0.5, replica.script.held.set)
            assert passed(await burst([replica], TEN, each=12)) == (10 if wait > 1 else 2)
            await stated([replica])
            return replica.sharing.decided_shared, replica.sharing.decided_alone

    assert asyncio.run(run(0.05)) == (0, 10)
    assert asyncio.run(run(TIMEOUT)) == (10, 0)


def test_a_frozen_redis_is_waited_for_once_and_not_at_all_when_it_is_known() -> None:
    async def run(server: RedisServer) -> None:
        async with running(server, 1) as [replica]:
            link = Link(Redis(url=server.url, timeout=0.05), replica.clock)
            await link.start()
            sharing = QuotaSharing(
                link,
                "another",
                without_redis=WithoutRedis.SHARE,
                timeout=0.05,
                lease=LEASE,
                clock=replica.clock,
            )
            use = SharedUse(sharing, "key", TEN)
            server.freeze()
            assert not isinstance(await let_in(use, replica), Limit)
            assert sharing.local
            for _ in range(5):
                await let_in(use, replica)
            assert not link.up
            reservation = use.enter(replica.clock())
            assert reservation.reserve(0, replica.clock()) is None
            server.resume()
            await link.stop()

    with RedisServer() as server:
        asyncio.run(run(server))


@ARMS
def test_headers_tell_what_all_have_left(server: RedisServer, together: bool) -> None:
    limits = KeyLimits(requests_per_minute=10, tokens_per_minute=1000)

    async def run() -> list[bytes]:
        async with running(server, 2) as replicas:
            if not together:
                cut(replicas)
            await burst(replicas[:1], limits, each=3, tokens=100)
            replicas[0].clock.now += 15.0
            await burst(replicas[1:], limits, each=1, tokens=100)
            use, now = replicas[1].use(limits), replicas[1].clock()
            assert (use.shared, use.used(now).requests) == (together, 4 if together else 1)
            names = dict(use.headers(now))
            ends = float(names[b"x-ratelimit-reset-requests"][:-1])
            assert 45.0 <= ends <= 45.0 + LATE if together else ends == WINDOW
            return [names[b"x-ratelimit-remaining-" + what] for what in (b"requests", b"tokens")]

    assert asyncio.run(run()) == ([b"6", b"600"] if together else [b"9", b"900"])


def test_headers_and_answers_tell_the_share_of_this_replica_alone(server: RedisServer) -> None:
    async def run() -> None:
        async with running(server) as replicas:
            cut(replicas, WithoutRedis.SHARE)
            use, now = replicas[0].use(TEN), replicas[0].clock()
            await burst(replicas[:1], TEN, each=1)
            assert dict(use.headers(now))[b"x-ratelimit-limit-requests"] == b"2"
            assert dict(use.headers(now))[b"x-ratelimit-remaining-requests"] == b"1"
            use.enter(now)
            with pytest.raises(RateLimited, match="2 requests in a minute at each of 4 gateways"):
                use.enter(now)

    asyncio.run(run())


def test_only_keys_with_limits_ask(server: RedisServer) -> None:
    async def run(limits: KeyLimits) -> int:
        async with running(server, 2) as replicas:
            assert passed(await burst(replicas, limits)) == 20
            for each in replicas:
                each.quotas.round()
            await asyncio.sleep(0)
            return sum(each.script.asked for each in replicas)

    assert asyncio.run(run(KeyLimits())) == 0
    assert asyncio.run(run(KeyLimits(requests_per_minute=20))) > 0


@ARMS
def test_limits_that_are_changed_hold_on(server: RedisServer, together: bool) -> None:
    async def run() -> list[int]:
        async with running(server) as replicas:
            if not together:
                cut(replicas)
            counts = []
            for most in (10, 15, 5, 16):
                for each in replicas:
                    each.use(TEN).limits = KeyLimits(requests_per_minute=most)
                counts.append(passed(await burst(replicas, TEN, each=20)))
            return counts

    of_each = 1 if together else REPLICAS
    assert asyncio.run(run()) == [10 * of_each, 5 * of_each, 0, of_each]


def test_a_statement_that_was_overtaken_changes_nothing(server: RedisServer) -> None:
    async def run(number: int) -> int:
        async with running(server, 2) as (here, there):
            assert passed(await burst([here], TEN, each=6)) == 6
            key = here.script.key("limits", "key")
            await here.script.run(QUOTA, [key], ["replica-0", number, 1, 60000, *[0] * 4, 9, 9, 9])
            return passed(await burst([there], TEN))

    assert asyncio.run(run(0)) == 4
    assert asyncio.run(run(10_000)) == 10


@pytest.mark.parametrize("seed", range(4))
def test_counts_come_to_what_is_true_whatever_is_lost_on_the_way(
    server: RedisServer, seed: int
) -> None:
    limits = KeyLimits(requests_per_minute=500, tokens_per_minute=50_000, max_concurrent=20)
    random = Random(seed)

    async def run() -> None:
        async with running(server, 3) as replicas:
            under_way: list[tuple[Replica, Reservation]] = []
            charged = came = 0
            for _ in range(150):
                replica = random.choice(replicas)
                what = random.random()
                if what < 0.1:
                    replica.script.cut = not replica.script.cut
                elif what < 0.12:
                    server.command("FLUSHALL")
                elif what < 0.6:
                    waits = asyncio.ensure_future(let_in(replica.use(limits), replica, 200))
                    if random.random() < 0.3:
                        await asyncio.sleep(random.random() * 0.001)
                    found = await waits
                    if isinstance(found, Reservation):
                        came += 1
                        under_way.append((replica, found))
                elif under_way:
                    replica, reservation = under_way.pop(random.randrange(len(under_way)))
                    charged += 50
                    reservation.settle(50, replica.clock())
                assert all(each.use(limits).held >= 0 for each in replicas)
            for each in replicas:
                each.script.cut = False
            for replica, reservation in under_way:
                reservation.settle(50, replica.clock())
                charged += 50
            replicas[0].clock.now += LEASE / 3 + 0.1
            await stated(replicas)
            # Each hears of the others when it asks.
            for each in replicas:
                each.use(limits).changed()
            await stated(replicas)
            for each in replicas:
                assert each.use(limits).used(each.clock()) == (came, charged, 0)

    asyncio.run(run())


def test_a_hiccup_is_no_news(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "prefixgate.quotas")

    async def run() -> None:
        async with running(server, 1) as [one]:
            one.use(KeyLimits(requests_per_minute=1))
            for seconds in (0.3, 1.0):
                for _ in range(5):
                    one.script.cut = True
                    one.quotas.round()
                    one.clock.now += seconds
                    one.quotas.round()
                    assert one.sharing.local
                    one.script.cut = False
                    one.quotas.round()

    asyncio.run(run())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 10
    assert "(auth.without_redis: share, 4 replicas)" in said[0]
    assert {text.partition(" for now")[0] for text in said} == {
        "API keys' limits are this replica's own",
        "API keys' limits hold over all replicas",
    }


@pytest.mark.parametrize("limits", [KeyLimits(), KeyLimits(max_concurrent=1)])
def test_local_limits_are_no_news_where_no_key_has_any(
    limits: KeyLimits, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "prefixgate.quotas")

    async def run() -> None:
        async with running(server, 1) as [one]:
            one.use(limits)
            one.script.cut = True
            one.quotas.round()
            one.clock.now += 60
            one.quotas.round()
            assert one.sharing.local

    asyncio.run(run())
    assert bool(caplog.records) is (limits != KeyLimits())
