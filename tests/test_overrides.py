"""What operators decide is obeyed by every replica, and outlives them; against a real Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.app import Gateway
from gateway.config import (
    ApiKey,
    Auth,
    BackendConfig,
    Health,
    PolicyConfig,
    SecretRef,
    Settings,
)
from gateway.fleet.address import Address
from gateway.fleet.backend import BackendState, Source, id_of
from gateway.reload import Reloader
from gateway.secrets import hash_key
from loadtests.redis.server import RedisServer
from tests.harness.fake_backend import FakeBackend
from tests.harness.routes import CHAT
from tests.replicas import Lone, Replica, agree, until
from tests.shared.bus import Bus

SECRET = "pg-the-key-of-the-settings"
A, B, C = (BackendConfig(url=f"http://{name}:1", models=["m"]) for name in "abc")
ID_A, ID_B, ID_C = (id_of(Address.parse(each.url)) for each in (A, B, C))
SETTINGS = Settings(
    backends=[A, B],
    health=Health(probes=False),
    auth=Auth(enabled=True, keys=(ApiKey(name="settled", hash=hash_key(SECRET)),)),
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


@pytest.fixture
def redis(server: RedisServer) -> RedisServer:
    server.command("FLUSHALL")
    return server


@contextlib.asynccontextmanager
async def replicas(
    redis: RedisServer, count: int, bus: Bus | None = None, settings: Settings = SETTINGS
) -> AsyncIterator[list[Replica]]:
    bus = bus or Bus()
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Replica(redis, bus, settings)) for _ in range(count)]


def serving(replica: Lone) -> set[str]:
    """Ids of the backends that requests can go to."""
    pool = replica.gateway.pools.get("m")
    return set() if pool is None else {load.id for load in pool.backends}


async def decide(replica: Replica) -> str:
    """Change all that can be.

    Returns:
        A key that was made.
    """
    await replica.ask("POST", f"/backends/{ID_A}/drain")
    await replica.ask("PATCH", f"/backends/{ID_B}", {"capacity_tokens": 777})
    await replica.ask("POST", "/backends", {"url": C.url, "models": ["m"]})
    await replica.ask("PUT", "/policy", {"name": "round_robin"})
    await replica.ask("PATCH", "/scheduling", {"gate": None, "target": {"seconds": 7.0}})
    limits = {"limits": {"max_concurrent": 3}}
    await replica.ask("PATCH", "/keys/settled", limits)
    made = await replica.ask("POST", "/keys", {"name": "made", "models": ["m*"], **limits})
    return str(made["key"])


def obeys(replica: Replica, made: str) -> bool:
    gateway = replica.gateway
    shown = gateway.keys.look_up([(b"x-api-key", made.encode())])
    return (
        serving(replica) == {ID_B, ID_C}
        and gateway.fleet.get(ID_B).capacity_tokens == 777
        and gateway.pools.policy.name == "round_robin"
        and (gateway.pools.scheduling.gate, gateway.pools.scheduling.target.seconds) == (None, 7.0)
        and gateway.keys.uses["settled"].limits.max_concurrent == 3
        and shown is not None
        and shown.use.limits.max_concurrent == 3
        and not shown.allows("x")
    )


@pytest.mark.parametrize("feed", [True, False])
@pytest.mark.parametrize("poll", [True, False])
def test_C03_what_one_replica_is_told_all_obey(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch, feed: bool, poll: bool
) -> None:
    monkeypatch.setattr("gateway.shared.state.POLL", 0.1 if poll else 3600.0)

    async def run() -> None:
        bus = Bus()
        bus.cut = not feed
        async with replicas(redis, 4, bus) as every:
            told, *others = every
            made = await decide(told)
            assert obeys(told, made)
            if feed or poll:
                await until(lambda: all(obeys(other, made) for other in others))
                await agree(every)
                shown = [await each.shows() for each in every for _ in range(5)]
                assert all(each == shown[0] for each in shown)
                # And back.
                await others[0].ask("POST", f"/backends/{ID_A}/undrain")
                await others[1].ask("DELETE", f"/backends/{ID_C}")
                await others[2].ask("DELETE", "/keys/made")
                await until(lambda: all(serving(each) == {ID_A, ID_B} for each in every))
                await until(lambda: all(set(r.gateway.keys.uses) == {"settled"} for r in every))
            else:  # they hear of it in no other way
                for other in others:
                    assert (await other.link.call("PING")) == b"PONG"
                    assert serving(other) == {ID_A, ID_B}
                    assert other.gateway.pools.policy.name != "round_robin"
                    assert set(other.gateway.keys.uses) == {"settled"}

    asyncio.run(run())


@pytest.mark.parametrize("feed", [True, False])
def test_every_replica_logs_what_was_set_or_taken_back_but_no_value(
    redis: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    feed: bool,
) -> None:
    monkeypatch.setattr("gateway.shared.state.POLL", 3600.0)
    caplog.set_level("INFO", "prefixgate.state")

    def said() -> list[str]:
        lines = [record.getMessage() for record in caplog.records]
        return [line for line in lines if line.startswith("set or taken back")]

    async def run() -> None:
        bus = Bus()
        bus.cut = not feed
        async with replicas(redis, 2, bus) as [told, other]:
            every = 2 if feed else 1
            await told.ask("PUT", "/policy", {"name": "round_robin"})
            await until(lambda: len(said()) == every)
            made = await told.ask("POST", "/keys", {"name": "made", "models": ["m*"]})
            await until(lambda: len(said()) == 2 * every)
            await told.ask("DELETE", "/overrides/policy")
            await until(lambda: len(said()) == 3 * every)
            assert (other.gateway.keys.uses.keys() >= {"made"}) is feed
        lines = ["policy"] * every + ["keys/made/hash, keys/made/models"] * every
        assert said() == [
            f"set or taken back over the admin API: {line}"
            for line in [*lines, *["policy"] * every]
        ]
        assert str(made["key"]) not in caplog.text

    asyncio.run(run())


def test_C03_requests_go_by_it(redis: RedisServer) -> None:
    with FakeBackend() as first, FakeBackend() as second:
        entries = [BackendConfig(url=each.url, models=["m"]) for each in (first, second)]
        settings = Settings(
            backends=entries,
            health=Health(probes=False),
            policy=PolicyConfig(name="round_robin"),
        )

        async def ask_all(every: list[Replica]) -> None:
            for replica in every:
                for _ in range(25):
                    answer = await replica.http.post(CHAT.path, json=CHAT.body(["hello"]))
                    assert answer.status_code == 200

        async def run() -> None:
            async with replicas(redis, 4, settings=settings) as every:
                id = every[0].gateway.reconciler.ordered()[0].id
                await every[3].ask("POST", f"/backends/{id}/drain")
                await until(lambda: all(id not in serving(each) for each in every))
                await ask_all(every)
                assert (len(first.requests), len(second.requests)) == (0, 100)
                await every[2].ask("DELETE", f"/backends/{id}")
                await until(lambda: all(r.gateway.fleet.find(id) is None for r in every))
                await every[1].ask("POST", "/backends", {"url": first.url, "models": ["m"]})
                await until(lambda: all(id in serving(each) for each in every))
                await ask_all(every)
                # Each replica takes turns by itself.
                assert 40 <= len(first.requests) <= 60
                assert len(first.requests) + len(second.requests) == 200

        asyncio.run(run())


def test_null_is_a_value(redis: RedisServer) -> None:
    settings = msgspec.structs.replace(
        SETTINGS, backends=[msgspec.structs.replace(A, capacity_tokens=5), B]
    )

    async def run() -> None:
        async with replicas(redis, 2, settings=settings) as [told, other]:
            await told.ask("PATCH", f"/backends/{ID_A}", {"capacity_tokens": None})
            await until(lambda: other.gateway.fleet.get(ID_A).capacity_tokens is None)
            await told.ask("DELETE", "/overrides/backends")
            await until(lambda: other.gateway.fleet.get(ID_A).capacity_tokens == 5)

    asyncio.run(run())


def test_a_key_that_cannot_be_read_stops_nothing_else(redis: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(SECRET)
    kept = ApiKey(name="settled", key=SecretRef(file=str(file)))
    with_file = msgspec.structs.replace(SETTINGS, auth=Auth(enabled=True, keys=(kept,)))

    async def run() -> None:
        bus = Bus()
        async with (
            Replica(redis, bus, SETTINGS) as told,
            Replica(redis, bus, with_file) as other,
        ):
            await told.ask("POST", "/keys", {"name": "made"})
            await agree([told, other])
            file.unlink()
            refused = await other.ask("DELETE", "/keys/made", status=400)
            assert str(file) in refused["error"]["message"]
            assert set(other.gateway.keys.uses) == {"settled", "made"}
            await told.ask("DELETE", "/keys/made")
            await told.ask("POST", f"/backends/{ID_A}/drain")
            await until(lambda: serving(other) == {ID_B})
            file.write_text(SECRET)
            await told.ask("POST", f"/backends/{ID_A}/undrain")
            await until(lambda: set(other.gateway.keys.uses) == {"settled"})

    asyncio.run(run())


def test_a_restart_forgets_nothing(redis: RedisServer) -> None:
    async def run() -> None:
        async with replicas(redis, 1) as [before]:
            made = await decide(before)
            shown = await before.shows()
        async with replicas(redis, 1) as [after]:
            assert obeys(after, made)
            assert await after.shows() == shown
        # The control: it is Redis that remembers.
        redis.command("FLUSHALL")
        async with replicas(redis, 1) as [other]:
            assert serving(other) == {ID_A, ID_B}

    asyncio.run(run())


def test_a_removed_backend_stays_away_whoever_names_it_later(redis: RedisServer) -> None:
    """The lists of files, Kubernetes and the DNS come after the start."""

    async def run() -> None:
        async with replicas(redis, 1) as [before]:
            before.gateway.reconciler.offer(Source.DNS, [C])
            await before.ask("DELETE", f"/backends/{ID_C}")
            await before.ask("POST", f"/backends/{ID_B}/drain")
            await before.ask("DELETE", f"/backends/{ID_A}")
        bare = msgspec.structs.replace(SETTINGS, backends=[])
        async with replicas(redis, 1, settings=bare) as [after]:
            after.gateway.reconciler.offer(Source.FILE, [A, B])
            after.gateway.reconciler.offer(Source.DNS, [C, B])
            [backend] = after.gateway.fleet
            assert (backend.id, backend.state) == (ID_B, BackendState.DRAINING)
            await after.ask("DELETE", "/overrides/backends")
            assert serving(after) == {ID_A, ID_B, ID_C}

    asyncio.run(run())


def test_two_at_once_both_have_their_way(redis: RedisServer) -> None:
    """On one thing, whoever came last has it, everywhere."""

    async def run() -> None:
        async with replicas(redis, 3) as every:
            await asyncio.gather(
                every[0].ask("PATCH", "/scheduling", {"prefill_share": 0.31}),
                every[1].ask("PATCH", "/scheduling", {"target": {"factor": 9.0}}),
                every[0].ask("PATCH", f"/backends/{ID_A}", {"capacity_tokens": 11}),
                every[1].ask("POST", f"/backends/{ID_A}/drain"),
                *(each.ask("PATCH", "/scheduling", {"gate": n}) for n, each in enumerate(every, 1)),
            )
            await agree(every)
            found = [each.gateway.pools.scheduling for each in every]
            assert found[0] == found[1] == found[2]
            assert (found[0].prefill_share, found[0].target.factor) == (0.31, 9.0)
            for each in every:
                backend = each.gateway.fleet.get(ID_A)
                assert (backend.capacity_tokens, backend.draining) == (11, True)

    asyncio.run(run())


def test_while_redis_is_away_a_drain_works_and_is_shared_later(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.shared.state.POLL", 0.1)

    async def run() -> None:
        async with replicas(redis, 2) as [told, other]:
            await told.ask("PATCH", "/scheduling", {"gate": 3.0})
            assert told.shown["x-prefixgate-shared"] == "true"
            await agree([told, other])
            redis.kill()
            await told.ask("POST", f"/backends/{ID_A}/drain")
            assert serving(told) == {ID_B}
            assert told.shown["x-prefixgate-shared"] == "false"
            listed = await told.ask("GET", "/overrides")
            unshared = [each["name"] for each in listed["overrides"] if not each["shared"]]
            assert (listed["shared"], unshared) == (False, [f"backends/{ID_A}/drained"])
            assert serving(other) == {ID_A, ID_B}
            # Empty: what it had is put back, too.
            redis.start()
            await until(lambda: serving(other) == {ID_B})
            await until(lambda: told.state.shared is True)
        async with replicas(redis, 1) as [new]:
            assert serving(new) == {ID_B}
            assert new.gateway.pools.scheduling.gate == 3.0

    asyncio.run(run())


def test_a_change_that_comes_late_does_not_undo_a_later_one(redis: RedisServer) -> None:
    async def run() -> None:
        async with replicas(redis, 2) as [cut_off, other]:
            await cut_off.link.stop()
            await cut_off.ask("POST", f"/backends/{ID_A}/drain")
            await cut_off.ask("POST", f"/backends/{ID_B}/drain")
            assert cut_off.state.shared is False
            await other.ask("POST", f"/backends/{ID_A}/drain")
            await other.ask("POST", f"/backends/{ID_A}/undrain")
            # As if it had been away for longer.
            late = {n: each._replace(at=each.at - 60) for n, each in cut_off.state.unshared.items()}
            cut_off.state.unshared.update(late)
            await cut_off.link.start()
            await cut_off.state.push()
            await agree([cut_off, other])
            assert serving(cut_off) == serving(other) == {ID_A}

    asyncio.run(run())


def test_when_redis_comes_after_the_start_its_state_comes_then(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.shared.state.POLL", 0.1)

    async def run() -> None:
        async with replicas(redis, 1) as [told]:
            await told.ask("POST", f"/backends/{ID_A}/drain")
            redis.freeze()
            try:
                async with replicas(redis, 1) as [new]:
                    assert serving(new) == {ID_A, ID_B}
                    await new.ask("POST", f"/backends/{ID_B}/drain")
                    assert new.shown["x-prefixgate-shared"] == "false"
                    redis.resume()
                    await until(lambda: not serving(new))
                    await until(lambda: not serving(told))
            finally:
                redis.resume()

    asyncio.run(run())


def test_what_this_version_does_not_know_is_kept_and_told(
    redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    strange = {
        "quotas/later": "1 {}",
        "backends/later": "1 {}",
        "keys/a/b/c": "1 {}",
        "scheduling/later": "1 true",
        f"backends/{ID_A}/later": "1 7",
        f"backends/{ID_B}/added": '1 {"url": "http://b:1", "later": 1}',
        "keys/odd/hash": '1 "sha512:0"',
        "policy": '1 {"name": "later"}',
        "scheduling/gate": "1 not json",
        "unreadable": "x",
        "@": "9 tag",
    }

    async def run() -> None:
        async with replicas(redis, 1) as [first]:
            key = first.link.key("state")
            for name, value in strange.items():
                await first.link.call("HSET", key, name, value)
            await first.ask("POST", f"/backends/{ID_A}/drain")
            await first.ask("PATCH", "/scheduling", {"target": {"seconds": 7.0}})
            listed = (await first.ask("GET", "/overrides"))["overrides"]
            ignored = {each["name"] for each in listed if each["ignored"]}
            assert ignored == strange.keys() - {"@", "unreadable", "scheduling/gate"}
            assert first.gateway.pools.scheduling.gate == SETTINGS.scheduling.gate
            assert serving(first) == {ID_B}
            assert first.gateway.pools.scheduling.target.seconds == 7.0
            for name, value in strange.items():
                if name != "@":
                    assert await first.link.call("HGET", key, name) == value.encode()

    asyncio.run(run())
    assert "quotas/later" in caplog.text


def test_what_was_set_holds_over_a_reload_until_it_is_dropped(
    redis: RedisServer, tmp_path: Path
) -> None:
    after = msgspec.structs.replace(
        SETTINGS,
        policy=PolicyConfig(name="least_load"),
        backends=[msgspec.structs.replace(A, capacity_tokens=5), B],
    )

    async def run() -> None:
        async with replicas(redis, 2) as [told, other]:
            await told.ask("PUT", "/policy", {"name": "round_robin"})
            await told.ask("PATCH", f"/backends/{ID_A}", {"capacity_tokens": 9})
            reloader = Reloader(told.gateway, tmp_path / "none", lambda: after, Gateway)
            reloaded = await reloader.reload()
            assert (reloaded.changed, reloaded.overridden) == (["backends"], ["policy"])
            assert told.gateway.pools.policy.name == "round_robin"
            assert told.gateway.fleet.get(ID_A).capacity_tokens == 9
            await agree([told, other])
            assert other.gateway.pools.policy.name == "round_robin"
            await other.ask("DELETE", "/overrides/policy")
            await other.ask("DELETE", "/overrides/backends")
            await until(lambda: told.gateway.pools.policy.name == "least_load")
            await until(lambda: told.gateway.fleet.get(ID_A).capacity_tokens == 5)
            assert other.gateway.pools.policy.name == SETTINGS.policy.name

    asyncio.run(run())


def test_no_secret_is_in_redis(redis: RedisServer) -> None:
    async def run() -> None:
        async with replicas(redis, 1) as [replica]:
            with_key = {"url": C.url, "models": ["m"], "api_key": "the-secret-of-c"}
            refused = await replica.ask("POST", "/backends", with_key, 400)
            assert refused["error"]["param"] == "api_key"
            assert "the-secret-of-c" not in str(refused)
            assert replica.gateway.fleet.find(ID_C) is None
            made = await decide(replica)
            stored = await replica.link.call("HGETALL", replica.link.key("state"))
            assert hash_key(made).encode() in b"".join(stored)
            for secret in (made.encode(), SECRET.encode(), b"the-secret-of-c"):
                assert secret not in b"".join(stored)
            for page in ("/overrides", "/config", "/keys"):
                shown = str(await replica.ask("GET", page))
                assert made not in shown
                assert hash_key(made).removeprefix("sha256:") not in shown

    asyncio.run(run())


def alone(settings: Settings, act: Callable[[Lone], Awaitable[None]]) -> None:
    """Does something with a gateway that has no Redis."""

    async def run() -> None:
        async with Lone(settings) as lone:
            await act(lone)
            assert "x-prefixgate-shared" not in lone.shown

    asyncio.run(run())


def test_without_redis_all_of_it_works_until_the_end() -> None:
    async def act(lone: Lone) -> None:
        keys, reconciler = lone.gateway.keys, lone.gateway.reconciler
        made = (await lone.ask("POST", "/keys", {"name": "made", "tenant": "t"}))["key"]
        key = keys.look_up([(b"api-key", made.encode())])
        assert key is not None
        assert (key.name, key.tenant, key.max_priority) == ("made", "t", "normal")
        view = await lone.ask("PATCH", "/keys/made", {"max_priority": "high", "models": []})
        assert (view["max_priority"], view["models"], view["tenant"]) == ("high", [], "t")
        await lone.ask("PATCH", f"/backends/{ID_A}", {"capacity_tokens": 9})
        listed = await lone.ask("GET", "/overrides")
        assert (listed["shared"], listed["version"]) == (None, None)
        assert [each["name"] for each in listed["overrides"]] == [
            f"backends/{ID_A}/capacity_tokens",
            "keys/made/hash",
            "keys/made/max_priority",
            "keys/made/models",
            "keys/made/tenant",
        ]
        # A source has the last word here.
        reconciler.offer(Source.CONFIG, [msgspec.structs.replace(A, capacity_tokens=5), B])
        names = [each["name"] for each in (await lone.ask("GET", "/overrides"))["overrides"]]
        assert names[0] == "keys/made/hash"
        await lone.ask("DELETE", "/keys/made")
        assert keys.look_up([(b"api-key", made.encode())]) is None
        assert (await lone.ask("GET", "/overrides"))["overrides"] == []
        await lone.ask("POST", f"/backends/{ID_A}/drain")
        await lone.ask("DELETE", f"/backends/{ID_B}")
        assert serving(lone) == set()
        await lone.ask("DELETE", "/overrides/backends")
        assert serving(lone) == {ID_A, ID_B}

    alone(SETTINGS, act)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/keys", {"name": "settled"}, 400, "there is a key 'settled' already"),
        ("POST", "/keys", {"name": "a b"}, 400, "name"),
        ("POST", "/keys", {"name": "x", "hash": "sha256:0"}, 400, "unknown field `hash`"),
        ("PATCH", "/keys/nobody", {"models": None}, 404, "no API key 'nobody'"),
        ("PATCH", "/keys/settled", {"limits": {"max_concurrent": 0}}, 400, "max_concurrent"),
        ("PATCH", "/keys/settled", {"hash": "sha256:0"}, 400, "unknown field `hash`"),
        ("DELETE", "/keys/nobody", None, 404, "no API key 'nobody'"),
        ("DELETE", "/keys/settled", None, 400, "is in the settings"),
        ("POST", "/backends", {"url": "http://x:1", "models": ["m" * 20_000]}, 400, "at most"),
        ("PUT", "/policy", {"name": "chance"}, 400, "chance"),
    ],
)
def test_what_cannot_be_changes_nothing(
    method: str, path: str, body: Any, status: int, says: str
) -> None:
    async def act(lone: Lone) -> None:
        before = lone.gateway.settings
        refused = await lone.ask(method, path, body, status)
        assert says in refused["error"]["message"]
        assert lone.gateway.settings == before
        assert serving(lone) == {ID_A, ID_B}
        assert (await lone.ask("GET", "/overrides"))["overrides"] == []

    alone(SETTINGS, act)


def test_keys_that_nobody_asks_for_are_not_made() -> None:
    async def act(lone: Lone) -> None:
        refused = await lone.ask("POST", "/keys", {"name": "made"}, 400)
        assert "auth.enabled is false" in refused["error"]["message"]

    alone(Settings(), act)
