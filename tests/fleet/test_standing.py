"""What one replica was told of backends, told to another, makes the same fleet there."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import BackendConfig, ConfigError, Health
from gateway.fleet.address import Address
from gateway.fleet.backend import BackendPatch, Source, id_of
from gateway.fleet.fleet import Fleet
from gateway.fleet.reconciler import Reconciler
from gateway.fleet.standing import Standing
from gateway.types import Role

HOSTS = "abcd"
SOURCES = (Source.CONFIG, Source.FILE, Source.DNS)
LINGER = 30.0


def config(host: str, **options: Any) -> BackendConfig:
    return BackendConfig(url=f"http://{host}:1", **({"models": ["m"]} | options))


def id_for(host: str) -> str:
    return id_of(Address.parse(config(host).url))


class Site:
    """A replica's fleet, in which what operators say lasts."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fleet = Fleet(Health(probes=False), lambda: self.now)
        self.reconciler = Reconciler(self.fleet, lambda: self.now, LINGER)
        self.reconciler.lasting = True

    def shows(self) -> list[Any]:
        return [
            (backend.id, backend.config, backend.source, backend.state)
            for backend in self.reconciler.ordered()
        ]


hosts = st.sampled_from(HOSTS)
options = st.fixed_dictionaries(
    {}, optional={"role": st.sampled_from(Role), "capacity_tokens": st.sampled_from([None, 1, 2])}
)
steps = st.one_of(
    st.tuples(st.just("add"), hosts, options),
    st.tuples(st.just("patch"), hosts, options),
    st.tuples(st.just("drain"), hosts, st.booleans()),
    st.tuples(st.just("remove"), hosts, st.none()),
    st.tuples(st.just("list"), st.sampled_from(SOURCES), st.dictionaries(hosts, options)),
    st.tuples(st.just("wait"), st.just(""), st.none()),
)


def does(site: Site, step: tuple[str, Any, Any]) -> None:
    what, about, how = step
    match what:
        case "add":
            site.reconciler.add(config(about, **{n: v for n, v in how.items() if v is not None}))
        case "patch" if site.fleet.find(id_for(about)):
            site.reconciler.patch(id_for(about), BackendPatch(**how))
        case "drain" if site.fleet.find(id_for(about)):
            site.reconciler.drain(id_for(about), how)
        case "remove" if site.fleet.find(id_for(about)):
            site.reconciler.remove(id_for(about))


@settings(max_examples=300)
@given(st.lists(steps, max_size=25))
def test_another_replica_comes_to_the_same(script: list[tuple[str, Any, Any]]) -> None:
    told, other, late = Site(), Site(), Site()
    lists: dict[Source, list[BackendConfig]] = {}
    for step in script:
        what, about, how = step
        if what == "list":
            lists[about] = [config(host, **each) for host, each in how.items()]
            for site in (told, other):
                site.reconciler.offer(about, lists[about])
        elif what == "wait":
            for site in (told, other):
                site.now += LINGER
                site.reconciler.expire()
        else:
            does(told, step)
            id = id_for(about)
            other.reconciler.stand(id, told.reconciler.standing(id))
            assert other.reconciler.standing(id) == told.reconciler.standing(id)
        assert other.shows() == told.shows()
    # One that starts reads what was said before it hears of any backend. What lingers elsewhere
    # it cannot know.
    for site in (told, other):
        site.now += LINGER
        site.reconciler.expire()
    for host in HOSTS:
        late.reconciler.stand(id_for(host), told.reconciler.standing(id_for(host)))
    for source, entries in lists.items():
        late.reconciler.offer(source, entries)
    assert late.shows() == told.shows()


@pytest.mark.parametrize(
    "wrong",
    [
        Standing(added=config("a", models=[""])),
        Standing(added=BackendConfig(url="http://169.254.169.254:1", models=["m"])),
        Standing(models=[""]),
    ],
)
def test_what_cannot_be_here_leaves_the_rest(wrong: Standing) -> None:
    site = Site()
    site.reconciler.offer(Source.CONFIG, [config("a")])
    before = site.shows()
    said = msgspec.structs.replace(wrong, drained=True)
    with pytest.raises(ConfigError):
        site.reconciler.stand(id_for("a"), said)
    [backend] = site.fleet
    assert backend.draining
    site.reconciler.stand(id_for("a"), Standing())
    assert site.shows() == before
