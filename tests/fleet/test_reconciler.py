from __future__ import annotations

import logging
from typing import Any

import pytest

from gateway.config import BackendConfig, ConfigError, Health
from gateway.fleet.backend import Backend, BackendPatch, BackendState, Source
from gateway.fleet.facts import EngineFacts
from gateway.fleet.fleet import Fleet, UnknownBackend
from gateway.fleet.reconciler import Reconciler
from gateway.types import EngineKind, Role

LINGER = 10.0
FACTS = EngineFacts(EngineKind.VLLM, "/health", ("m",))


def entry(name: str = "a", **fields: Any) -> BackendConfig:
    return BackendConfig(url=f"http://{name}:1", **fields)


class World:
    """A reconciler over a real fleet, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.fleet = Fleet(Health(), lambda: self.now)
        self.reconciler = Reconciler(self.fleet, lambda: self.now, LINGER)
        self.removed: list[Backend] = []
        self.changes = 0
        self.fleet.on_change(self._changed)

    def _changed(self, backend: Backend) -> None:
        self.changes += 1
        if backend.state is BackendState.REMOVED:
            self.removed.append(backend)

    def offer(self, source: Source, *entries: BackendConfig | str, feed: str = "") -> None:
        given = [entry(each) if isinstance(each, str) else each for each in entries]
        self.reconciler.offer(source, given, feed)

    def pods(self, **uids: str) -> None:
        entries = [entry(name) for name in uids]
        by_url = {each.url: uid for each, uid in zip(entries, uids.values(), strict=True)}
        self.reconciler.offer(Source.KUBERNETES, entries, "k", by_url)

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.reconciler.expire()

    @property
    def names(self) -> list[str]:
        return [backend.address.host for backend in self.fleet]

    def the(self, name: str = "a") -> Backend:
        [found] = [backend for backend in self.fleet if backend.address.host == name]
        return found

    def healthy(self, name: str = "a") -> Backend:
        backend = self.the(name)
        self.fleet.probe_succeeded(backend, FACTS)
        return backend


@pytest.fixture
def world() -> World:
    return World()


# lists


def test_the_fleet_gets_the_difference(world: World) -> None:
    world.offer(Source.CONFIG, "a", "b")
    a = world.healthy("a")
    changes = world.changes
    world.offer(Source.CONFIG, "a", "c")
    assert world.names == ["a", "c"]
    assert world.the("a") is a
    assert a.state is BackendState.HEALTHY
    assert world.changes == changes + 2
    world.offer(Source.CONFIG, "a", "c")
    world.offer(Source.CONFIG, "c", "a")
    assert world.changes == changes + 2


def test_a_changed_entry_changes_the_backend_and_nothing_else(world: World) -> None:
    world.offer(Source.FILE, entry(capacity_tokens=5))
    a = world.healthy()
    world.offer(Source.FILE, entry(role=Role.DECODE))
    assert world.the() is a
    assert (a.role, a.capacity_tokens, a.state) == (Role.DECODE, None, BackendState.HEALTHY)


@pytest.mark.parametrize("wrong", [BackendConfig(url="gpu:1"), entry("b", models=[])])
def test_a_list_with_something_wrong_changes_nothing(world: World, wrong: BackendConfig) -> None:
    world.offer(Source.CONFIG, "a")
    with pytest.raises(ConfigError):
        world.offer(Source.CONFIG, "c", wrong)
    assert world.names == ["a"]
    with pytest.raises(ConfigError):
        world.reconciler.add(wrong)
    assert world.names == ["a"]


def test_an_address_in_two_spellings_is_one_backend(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        other = BackendConfig(url="HTTP://A:1/", capacity_tokens=5)
        world.offer(Source.CONFIG, entry(role=Role.DECODE), other)
    assert "named twice" in caplog.text
    assert (world.the().role, world.the().capacity_tokens) == (Role.DECODE, 5)


# several sources


def test_what_the_config_says_holds_before_all_others(world: World) -> None:
    world.offer(Source.DNS, entry(capacity_tokens=1, role=Role.PREFILL, priority=True))
    world.offer(Source.FILE, entry(capacity_tokens=2, role=Role.DECODE))
    world.offer(Source.CONFIG, entry(capacity_tokens=3))
    a = world.the()
    assert (a.source, a.capacity_tokens, a.role) == (Source.CONFIG, 3, Role.DECODE)
    assert a.config.priority
    world.offer(Source.CONFIG)
    assert (a.source, a.capacity_tokens, a.role) == (Source.FILE, 2, Role.DECODE)
    assert world.the() is a


def test_it_goes_when_the_last_one_drops_it(world: World) -> None:
    world.offer(Source.DNS, "a", feed="one")
    world.offer(Source.DNS, "a", feed="two")
    world.offer(Source.CONFIG, "a")
    a = world.healthy()
    world.offer(Source.DNS, feed="one")
    world.offer(Source.CONFIG)
    assert a.state is BackendState.HEALTHY
    world.offer(Source.DNS, feed="two")
    assert a.state is BackendState.DRAINING
    world.passes(LINGER)
    assert world.names == []


def test_a_source_that_is_no_more_names_nothing(world: World) -> None:
    world.offer(Source.FILE, "a", feed="one")
    world.offer(Source.FILE, "a", "b", feed="two")
    world.reconciler.withdraw(Source.FILE, "two")
    world.passes(LINGER)
    assert world.names == ["a"]
    assert set(world.reconciler.listed(Source.FILE, "two")) == set()


def test_what_the_config_drops_goes_at_once(world: World) -> None:
    world.offer(Source.CONFIG, "a")
    world.offer(Source.CONFIG)
    assert world.names == []


# coming and going


def test_one_that_flaps_stays_what_it_was(world: World) -> None:
    world.offer(Source.DNS, "a", "b")
    a = world.healthy()
    for _ in range(20):
        world.offer(Source.DNS, "b")
        assert (a.state, a.cause) == (BackendState.DRAINING, "no source lists it any more")
        world.passes(LINGER - 1)
        world.offer(Source.DNS, "a", "b")
        assert (world.the(), a.state) == (a, BackendState.HEALTHY)
        world.passes(LINGER)
    assert world.removed == []
    world.offer(Source.DNS, "b")
    world.passes(LINGER)
    assert world.removed == [a]


def test_without_a_grace_it_goes_at_once(world: World) -> None:
    world.reconciler.linger = 0.0
    world.offer(Source.DNS, "a")
    world.offer(Source.DNS)
    assert world.names == []


def test_it_comes_back_from_another_source(world: World) -> None:
    world.offer(Source.FILE, "a")
    a = world.healthy()
    world.offer(Source.FILE)
    world.offer(Source.KUBERNETES, "a")
    world.passes(LINGER)
    assert (world.the(), a.state, a.source) == (a, BackendState.HEALTHY, Source.KUBERNETES)


def test_taken_out_on_purpose_stays_out_when_it_flaps(world: World) -> None:
    world.offer(Source.FILE, "a")
    a = world.healthy()
    world.fleet.drain(a.id)
    world.offer(Source.FILE)
    world.offer(Source.FILE, "a")
    assert (a.state, a.cause) == (BackendState.DRAINING, "taken out through the admin API")


def test_the_same_pod_under_the_same_address_is_the_same_engine(world: World) -> None:
    world.pods(a="1", b="2")
    a = world.healthy()
    world.pods(a="1")
    world.pods(a="1", b="2")
    assert world.the() is a
    assert world.removed == []


def test_another_pod_under_the_same_address_is_another_engine(world: World) -> None:
    world.pods(a="1")
    a = world.healthy()
    world.pods(a="2")
    assert world.removed == [a]
    assert world.the() is not a
    assert world.the().state is BackendState.STARTING


def test_the_same_pod_under_another_address_is_another_backend(world: World) -> None:
    world.pods(a="1")
    a = world.healthy()
    world.pods(b="1")
    assert world.the("b").state is BackendState.STARTING
    world.passes(LINGER)
    assert world.removed == [a]


def test_a_removal_that_is_due_late_does_not_hit_the_successor(world: World) -> None:
    world.offer(Source.FILE, "a")
    old = world.healthy()
    world.offer(Source.FILE)
    world.reconciler.remove(old.id)
    world.reconciler.add(entry())
    new = world.the()
    world.passes(2 * LINGER)
    assert world.the() is new
    assert world.removed == [old]


# the operator


def test_adding_what_is_there_merges(world: World) -> None:
    world.offer(Source.CONFIG, entry(capacity_tokens=5))
    backend, new = world.reconciler.add(entry(capacity_tokens=6, role=Role.DECODE))
    assert not new
    assert (backend.capacity_tokens, backend.role) == (5, Role.DECODE)
    other, new = world.reconciler.add(entry("b", capacity_tokens=6))
    assert new
    world.reconciler.add(entry("b", role=Role.DECODE))
    assert (other.capacity_tokens, other.role, other.source) == (6, Role.DECODE, Source.ADMIN)


def test_a_patch_outlives_new_lists_and_not_the_backend(world: World) -> None:
    world.offer(Source.FILE, entry(role=Role.DECODE))
    id = world.the().id
    world.reconciler.patch(id, BackendPatch(capacity_tokens=7))
    world.reconciler.patch(id, BackendPatch(models=["x"]))
    world.offer(Source.FILE, entry(priority=True))
    a = world.the()
    assert (a.capacity_tokens, a.models, a.role) == (7, ("x",), Role.UNIFIED)
    assert a.config.priority
    # What the source says anew of the same thing is newer.
    world.offer(Source.FILE, entry(capacity_tokens=8))
    assert (a.capacity_tokens, a.models) == (8, ("x",))
    world.reconciler.patch(id, BackendPatch(models=None))
    assert a.config.models is None
    world.reconciler.remove(id)
    world.reconciler.add(entry())
    assert world.the().capacity_tokens == 8


def test_a_patch_that_is_wrong_changes_nothing(world: World) -> None:
    world.offer(Source.FILE, "a")
    a = world.the()
    with pytest.raises(ConfigError, match="models"):
        world.reconciler.patch(a.id, BackendPatch(models=[""]))
    assert a.config == entry()
    with pytest.raises(UnknownBackend):
        world.reconciler.patch("nope", BackendPatch())


def test_what_was_removed_stays_away_while_its_source_says_the_same(world: World) -> None:
    world.offer(Source.FILE, "a", "b")
    world.offer(Source.CONFIG, "a")
    world.reconciler.remove(world.the().id)
    assert world.names == ["b"]
    world.offer(Source.FILE, "a", "b", "c")
    world.offer(Source.CONFIG, "a", "d")
    assert world.names == ["b", "c", "d"]
    with pytest.raises(UnknownBackend):
        world.reconciler.remove("nope")


@pytest.mark.parametrize("how", ["added", "changed", "dropped and named", "named elsewhere"])
def test_what_was_removed_comes_back_when(world: World, how: str) -> None:
    world.offer(Source.FILE, "a")
    old = world.the()
    world.reconciler.remove(old.id)
    if how == "added":
        assert world.reconciler.add(entry()).new
    elif how == "changed":
        world.offer(Source.FILE, entry(role=Role.DECODE))
    elif how == "dropped and named":
        world.offer(Source.FILE)
        world.offer(Source.FILE, "a")
    else:
        world.offer(Source.DNS, "a")
    assert world.the() is not old
    assert world.the().state is BackendState.STARTING


def test_one_that_lingers_can_be_removed(world: World) -> None:
    world.offer(Source.FILE, "a")
    world.offer(Source.FILE)
    world.reconciler.remove(world.the().id)
    world.passes(LINGER)
    assert world.names == []


# what is seen


def test_listed_and_unreachable(world: World) -> None:
    world.offer(Source.FILE, "a", "b", "c")
    world.offer(Source.DNS, "a")
    assert world.reconciler.unreachable(Source.FILE) == 0  # not asked yet
    world.healthy("a")
    world.fleet.probe_failed(world.the("b"), "refused")
    assert world.reconciler.unreachable(Source.FILE) == 1
    assert world.reconciler.unreachable(Source.DNS) == 0
    assert world.reconciler.unreachable(Source.ADMIN) == 0
    assert len(world.reconciler.listed(Source.FILE)) == 3
