"""Group 12, but for what is about a Redis that is away."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.cases.lab import CONNECTIONS, KEY, Lab, load
from tests.cases.sharing import TURNS, WAIT, is_shared, known, knows, place, until
from tests.cases.test_group17_stored import Keeper
from tests.harness.fake_backend import FakeBackend
from tests.harness.gateway_process import GatewayProcess
from tests.harness.routes import CHAT, RESPONSES, text
from tests.harness.tcp_proxy import Way


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with ExitStack() as stack:
        yield Lab(stack, tmp_path_factory.mktemp("redis"))


@pytest.fixture
def lab(running: Lab) -> Lab:
    running.well()
    return running


# Z06, Z07


def test_Z06_Z07_cancelled_look_ups_shift_no_answers_and_lose_no_connections(lab: Lab) -> None:
    """Who keeps a response is asked of Redis, which answers late; many clients do not wait."""
    keepers = [Keeper(backend, name) for backend, name in zip(lab.backends, "abc", strict=True)]
    first, second = lab.gateways

    def make(number: int) -> str:
        body = RESPONSES.body([text(f"Z06 {number}", 40)])
        return str(first.post(RESPONSES.path, body).json()["id"])

    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(make, range(220)))
    assert all(keeper.kept for keeper in keepers)
    asked, last = ids[:-10], ids[-10:]
    lab.wire.behave(down=Way(delay=0.05))
    lab.reconnect()
    try:
        told = asyncio.run(look_up(second, asked, share_cancelled=0.3))
        until("it is up", lambda: lab.up(second))
        told += asyncio.run(look_up(second, last, share_cancelled=0.0))
        clients = (lab.redis.command("CLIENT", "LIST") or b"").count(b"\n")
        assert clients <= len(lab.all) * (CONNECTIONS + 1) + 2
    finally:
        lab.wire.behave()
        lab.reconnect()
    found = [(id, body) for id, status, body in told if status == 200]
    assert all(body == b'{"id": "%b"}' % id.encode() for id, body in found)
    # A busy machine may be too slow for a few of them.
    assert len(found) > 0.8 * len(told) > 100
    # The control: one that cannot ask finds them by luck.
    apart = asyncio.run(look_up(lab.cut, asked[:60], share_cancelled=0.0))
    assert sum(status == 404 for _, status, _ in apart) > 3


Told = tuple[str, int, bytes]


async def look_up(gw: GatewayProcess, ids: list[str], share_cancelled: float) -> list[Told]:
    """Ask for stored responses, twenty at a time.

    Returns:
        Id, status and body of those answers that were waited for.
    """
    choose = random.Random(6)
    turns = asyncio.Semaphore(20)

    async def ask(id: str, patience: float | None) -> Told | None:
        async with turns:
            reader, writer = await asyncio.open_connection("127.0.0.1", gw.port)
            head = f"GET /v1/responses/{id} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
            headers = "".join(f"{name}: {value}\r\n" for name, value in KEY.items())
            writer.write(f"{head}{headers}\r\n".encode())
            try:
                async with asyncio.timeout(patience):
                    answer = await reader.read()
            except TimeoutError:
                return None
            finally:
                writer.transport.abort()
            head_end = answer.index(b"\r\n\r\n")
            return id, int(answer.split(b" ", 2)[1]), answer[head_end + 4 :]

    waits = [choose.random() / 10 if choose.random() < share_cancelled else None for _ in ids]
    told = await asyncio.gather(*map(ask, ids, waits))
    return [each for each in told if each is not None]


# Z09


def test_Z09_what_is_dead_is_forgotten(lab: Lab) -> None:
    """A gateway that is killed with requests under way, and a backend that only it has used."""
    idle, *hanging = lab.backends
    for backend in hanging:
        backend.behave(hang=True)
    third = lab.start(more=TURNS)
    watching = lab.gateways[1]
    prompts = [CHAT.body([text(f"Z09 {number}", 3000)]) for number in range(20)]

    def choices() -> set[str]:
        return {watching.explain(CHAT.path, prompt).backend for prompt in prompts}

    with ExitStack() as stack:
        gone = stack.enter_context(FakeBackend("gone"))
        third.admin("POST", "/backends", {"url": gone.url})
        id = third.backend_id(gone.url)
        body = CHAT.body([text("Z09 gone", 3000)]) | {"model": "gone"}
        until("it serves", lambda: third.post(CHAT.path, body, **KEY).status_code == 200)
        until("it is named", lambda: lab.names(id) >= {lab.key("feed")})
        for number in range(60):
            client = stack.enter_context(third.client())
            body = CHAT.stream([text(f"Z09 hangs {number}", 4000)])
            client.request(CHAT.path, body, headers=KEY.items())
        until("they hang", lambda: [len(each.requests) for each in hanging] == [20, 20])
        until("it is heard of", lambda: choices() == {watching.backend_id(idle.url)})
        watching.settles(lambda metrics: metrics.total("prefixgate_replicas") == 3)
        third.signal(signal.SIGKILL)
        third.ended()
    for backend in hanging:
        backend.behave()
    watching.admin("DELETE", f"/backends/{id}")
    watching.settles(lambda metrics: metrics.total("prefixgate_replicas") == 2, WAIT)
    until("its load does not count any more", lambda: len(choices()) == 3)
    assert {gw.metrics().total("prefixgate_in_flight") for gw in lab.gateways} == {0}

    def forgotten() -> bool:
        # There is a new snapshot where there is something new.
        place(watching, [text(f"Z09 after {time.monotonic()}", 600)])
        # What operators decided stays, and parts of its limits for a minute.
        return lab.names(id) <= {lab.key("state"), lab.key("slots:held")}

    until("the backend is named no more", forgotten)
    replicas = lab.key("slots:replicas")
    until("so is the gateway", lambda: lab.count(replicas, {b"last", b"born"}) == 2)


def test_Z09_keys_are_few_and_expire(lab: Lab) -> None:
    load(lab, 0.3)
    before = lab.expiries()
    load(lab, 0.5)
    after = lab.expiries()
    # A snapshot more, while the one before it may still be read.
    assert len(after) <= len(before) + 1 < 15
    kept = [name for name, left in after.items() if left == -1]
    assert kept in ([], [lab.key("state")])
    assert {lab.key("feed"), lab.key("snapshot"), lab.key("limits:limited")} <= after.keys()


# Z10


def test_Z10_what_redis_loses_the_gateways_put_back(lab: Lab) -> None:
    turns = [text("Z10", 3000)]
    home = place(lab.gateways[0], turns)
    knows(lab.gateways, turns, home)
    losses = [("FLUSHALL",), *(("DEL", name.decode()) for name in lab.expiries())]
    for number, loss in enumerate(losses):
        lab.redis.command(*loss)
        assert all(home in known(gw, turns) for gw in lab.gateways)
        is_shared(lab, f"Z10 {number}")
    # Who comes now learns all that was known before, from what is in Redis now.
    later = lab.start()
    knows([later], turns, home)
    later.stop()


@pytest.mark.parametrize("policy", ["allkeys-random", "volatile-ttl"])
def test_Z10_a_redis_that_evicts(lab: Lab, policy: str) -> None:
    try:
        lab.redis.command("CONFIG", "SET", "maxmemory-policy", policy)
        used = int(lab.connection().info("memory")["used_memory"])
        lab.redis.command("CONFIG", "SET", "maxmemory", str(used + 4096))
        load(lab, 0.5)
        evicted = lab.connection().info("stats")["evicted_keys"]
        assert evicted > 0
    finally:
        lab.redis.command("CONFIG", "SET", "maxmemory", "0")
        lab.redis.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    until("Redis is up", lambda: all(map(lab.up, lab.gateways)))
    is_shared(lab, f"Z10 {policy}")


def test_Z10_what_is_in_redis_may_be_anything(lab: Lab) -> None:
    redis = lab.connection()
    feed = lab.key("feed")
    for fields in ({"x": "y"}, {"b": b"\xff" * 100}, {b"": b""}, {"b": b"\x01"}):
        redis.xadd(feed, fields)
    is_shared(lab, "Z10 odd entries")
    for name in lab.expiries():
        redis.delete(name)
        redis.set(name, "of another kind", ex=3600)
        load(lab, 0.05)
    later = lab.start()  # it starts in spite of all
    later.http.headers.update(KEY)
    place(later, [text("Z10 later", 3000)])
    for name in lab.expiries():
        redis.delete(name)
    is_shared(lab, "Z10 is well")
    later.stop()
    assert all("Traceback" not in gw.log for gw in lab.all)
