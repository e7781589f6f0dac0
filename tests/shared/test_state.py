"""The follower's part: what it does about announcements, and about whatever Redis holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from gateway.config import Redis
from gateway.shared.link import Link
from gateway.shared.records import Away, BadRecord, Kind, Refused
from gateway.shared.state import AdminState
from gateway.shared.store import NOTHING, Change, Entry, Store, Stored, Version
from loadtests.redis.server import RedisServer
from tests.replicas import until
from tests.shared.bus import Bus

ORIGIN = b"12345678"


class FakeStore(Store):
    """A store without Redis.

    Attributes:
        held: what it holds.
        fails: what every call raises.
        asked: how often the version was looked at.
    """

    def __init__(self) -> None:
        self.held = Stored(NOTHING, {})
        self.fails: Exception | None = None
        self.asked = 0

    def _check(self) -> None:
        if self.fails is not None:
            raise self.fails

    async def version(self) -> Version:
        self.asked += 1
        self._check()
        return self.held.version

    async def read(self) -> Stored:
        self._check()
        return self.held

    async def change(self, known: Version, changes: Any) -> tuple[Version, list[str]]:
        self._check()
        entries = {name: Entry(1, change.value) for name, change in changes.items()}
        self.set(**{name: entry.value for name, entry in entries.items()})
        return self.held.version, []

    def set(self, **values: Any) -> None:
        number = self.held.version.number + 1
        entries = {name: Entry(number, value) for name, value in values.items()}
        self.held = Stored(Version(number, "tag"), self.held.entries | entries)


def state_of(store: Store, taken: Callable[[], None] = lambda: None) -> AdminState:
    state = AdminState(taken, lambda: 0.0)
    state.share(store, Bus().join(state))
    return state


def test_an_announcement_is_followed_at_once_unless_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gateway.shared.state.POLL", 3600.0)

    async def run() -> None:
        store = FakeStore()
        state = state_of(store)
        await state.start(1.0)
        store.set(a=b"1")
        state.apply(Kind.STATE, b"1 tag", ORIGIN)
        await until(lambda: state.entries == {"a": Entry(1, b"1")})
        asked = store.asked
        state.apply(Kind.STATE, b"1 tag", ORIGIN)
        for _ in range(10):
            await asyncio.sleep(0)
        assert store.asked == asked
        store.set(b=b"2")
        state.missed(ORIGIN)
        await until(lambda: len(state.entries) == 2)
        for record in (b"", b"1", b"x tag"):
            with pytest.raises(BadRecord):
                state.apply(Kind.STATE, record, ORIGIN)
        await state.stop()

    asyncio.run(run())


@pytest.mark.parametrize("failure", [Away(), Refused("NOPERM no"), ZeroDivisionError()])
def test_whatever_redis_does_it_goes_on(
    failure: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("gateway.shared.state.POLL", 0.01)
    caplog.set_level("INFO")

    async def run() -> None:
        store = FakeStore()
        store.fails = failure
        state = state_of(store)
        await state.start(0.1)
        assert not state.synced
        state.note({"a": 1}, ())
        await state.push()
        assert (state.shared, state.entries["a"].value) == (False, b"1")
        store.fails = None
        await until(lambda: state.shared is True)
        assert state.synced
        assert store.held.entries["a"].value == b"1"
        await state.stop()

    asyncio.run(run())
    # Once, not at each look.
    assert caplog.text.count("NOPERM") == isinstance(failure, Refused)
    assert caplog.text.count("cannot be followed") == isinstance(failure, ZeroDivisionError)
    assert caplog.text.count("followed again") == (not isinstance(failure, Away))


def test_what_cannot_be_put_into_force_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    def taken() -> None:
        raise ZeroDivisionError

    async def run() -> None:
        store = FakeStore()
        store.set(a=b"1")
        state = state_of(store, taken)
        await state.start(1.0)
        assert state.synced
        await state.stop()

    asyncio.run(run())
    assert "is not in force" in caplog.text


def test_what_is_never_shared_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        store = FakeStore()
        state = state_of(store)
        await state.start(1.0)
        store.fails = Away()
        state.note({"scheduling/gate": None}, ())
        await state.stop()

    asyncio.run(run())
    assert "scheduling/gate" in caplog.text


def test_a_change_while_another_is_stored_is_not_lost() -> None:
    """It is of the same thing, and was made after the first had been sent."""

    async def run() -> None:
        store = FakeStore()
        state = state_of(store)
        stored: list[Any] = []
        change = store.change

        async def slow(known: Version, changes: dict[str, Change]) -> Any:
            stored.append({name: each.value for name, each in changes.items()})
            if len(stored) == 1:
                state.note({"a": 2}, ())
            return await change(known, changes)

        store.change = slow
        state.note({"a": 1}, ())
        await state.push()
        assert state.entries["a"].value == b"2"
        await state.push()
        assert stored == [{"a": b"1"}, {"a": b"2"}]
        assert (state.shared, store.held.entries["a"].value) == (True, b"2")

    asyncio.run(run())


@pytest.mark.parametrize("also", [False, True], ids=["put back", "and changed since"])
def test_what_another_put_back_that_knew_less_undoes_nothing(
    also: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis is flushed just after a change, before the others have heard of it."""
    monkeypatch.setattr("gateway.shared.state.POLL", 3600.0)

    async def run(redis: RedisServer) -> None:
        links = [Link(Redis(url=redis.url), time.monotonic) for _ in range(2)]
        one, other = (state_of(Store(link, 2.0)) for link in links)
        for link, state in zip(links, (one, other), strict=True):
            await link.start()
            await state.start(1.0)
        one.note({"gone": 1, "changed": 1}, ())
        await one.push()
        await other._try(other._refresh)
        one.note({"changed": 2, "new": 1}, ["gone"])
        await one.push()
        redis.command("FLUSHALL")
        await other._try(other._refresh)
        assert {*other.entries} == {"gone", "changed"}  # as far as it knew
        if also:
            for number in range(3):
                other.note({"theirs": number}, ())
                await other.push()
        for state in (one, other, one):
            await state._try(state._refresh)
        expected = {"changed": b"2", "new": b"1"} | ({"theirs": b"2"} if also else {})
        for state in (one, other):
            assert {name: entry.value for name, entry in state.entries.items()} == expected
            assert state.version == await Store(links[0], 2.0).version()
            await state.stop()
        for link in links:
            await link.stop()

    with RedisServer() as redis:
        asyncio.run(run(redis))
