"""Whatever sources say, in whatever order: the fleet is what they say now."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import BackendConfig, Health
from gateway.fleet.address import Address
from gateway.fleet.backend import Backend, BackendState, Source, id_of
from gateway.fleet.fleet import Fleet
from gateway.fleet.reconciler import Reconciler

LINGER = 10.0
HOSTS = "abcd"
ORIGINS = ((Source.CONFIG, ""), (Source.FILE, "f"), (Source.DNS, "d"), (Source.DNS, "e"))

hosts = st.lists(st.sampled_from(HOSTS), max_size=5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.sampled_from(ORIGINS), hosts),
        st.tuples(st.just("add"), st.none(), st.sampled_from(HOSTS)),
        st.tuples(st.just("remove"), st.none(), st.sampled_from(HOSTS)),
        st.tuples(st.just("pass"), st.none(), st.sampled_from([1.0, LINGER])),
    ),
    max_size=40,
)


def entry(host: str) -> BackendConfig:
    return BackendConfig(url=f"http://{host}:1")


def id_for(host: str) -> str:
    return id_of(Address.parse(entry(host).url))


class World:
    """The reconciler, and beside it who names what and is not told to stay away."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fleet = Fleet(Health(), lambda: self.now)
        self.reconciler = Reconciler(self.fleet, lambda: self.now, LINGER)
        self.removed: list[Backend] = []
        self.fleet.on_change(self._changed)
        self.named: dict[tuple[Source, str], set[str]] = {origin: set() for origin in ORIGINS}
        self.named[Source.ADMIN, ""] = set()
        self.away: set[tuple[tuple[Source, str], str]] = set()

    def _changed(self, backend: Backend) -> None:
        if backend.state is BackendState.REMOVED:
            self.removed.append(backend)

    def offer(self, origin: tuple[Source, str], found: Iterable[str]) -> None:
        source, feed = origin
        self.reconciler.offer(source, [entry(host) for host in found], feed)
        for host in self.named[origin] - set(found):
            self.away.discard((origin, host))
        self.named[origin] = set(found)

    def add(self, _: None, host: str) -> None:
        self.reconciler.add(entry(host))
        self.named[Source.ADMIN, ""].add(host)
        self.away = {(origin, other) for origin, other in self.away if other != host}

    def remove(self, _: None, host: str) -> None:
        if self.fleet.find(id_for(host)) is None:
            return
        self.reconciler.remove(id_for(host))
        self.named[Source.ADMIN, ""].discard(host)
        self.away |= {(origin, host) for origin, named in self.named.items() if host in named}

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.reconciler.expire()

    @property
    def wanted(self) -> set[str]:
        return {
            host
            for origin, found in self.named.items()
            for host in found
            if (origin, host) not in self.away
        }


@settings(max_examples=300, deadline=None)
@given(steps)
def test_the_fleet_is_what_is_said_now(said: list[tuple[str, object, object]]) -> None:
    world = World()
    there: dict[str, Backend] = {}
    for step, first, second in said:
        if step == "pass":
            assert isinstance(second, float)
            world.passes(second)
        else:
            getattr(world, step)(first, second)
        now = {backend.address.host: backend for backend in world.fleet}
        assert {host for host, backend in now.items() if not backend.unlisted} == world.wanted
        for host, backend in there.items():
            # Who stays in the fleet stays the same, and nobody leaves it while he is wanted.
            assert now.get(host) is backend or backend in world.removed
            if host in world.wanted and step != "remove":
                assert now[host] is backend
        there = now
    world.passes(LINGER)
    assert {backend.address.host for backend in world.fleet} == world.wanted
    assert len(set(map(id, world.removed))) == len(world.removed)
