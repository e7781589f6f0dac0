from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gateway.config import BackendConfig, ConnectorName, Disagg, Health, KvCache
from gateway.disagg.fleet_engines import FleetEngines
from gateway.disagg.networks import Networks
from gateway.disagg.pairs import Pairs
from gateway.fleet.aliases import Aliases
from gateway.fleet.backend import Source
from gateway.fleet.facts import EngineFacts
from gateway.fleet.fleet import Fleet
from gateway.fleet.reconciler import Reconciler
from gateway.scheduling.load import BackendLoad
from gateway.types import Role
from tests.disagg.test_traffic import FACTS

P, D = "p", "d"


def clock() -> float:
    return 0.0


def engines(settings: Disagg, facts: dict[str, EngineFacts], **aliases: list[str]) -> Any:
    """Of a prefill and a decode engine, and the network that they are looked up in."""
    fleet = Fleet(Health(), clock)
    roles = {D: Role.DECODE, P: Role.PREFILL}
    configs = [BackendConfig(url=f"http://{name}:1", role=role) for name, role in roles.items()]
    Reconciler(fleet, clock, 0.0).offer(Source.CONFIG, configs)
    for backend in fleet:
        fleet.probe_succeeded(backend, facts[backend.address.host])
    fleet.aliases = Aliases(aliases)
    pool = SimpleNamespace(members=[BackendLoad(backend.id) for backend in fleet])
    pools: Any = dict.fromkeys((*FACTS.models, "more", *aliases), pool)
    networks = Networks(settings)
    made = FleetEngines(fleet, pools, Pairs(settings, clock), networks)
    ids = {backend.address.host: backend.id for backend in fleet}
    return SimpleNamespace(made=made, networks=networks, p=ids[P], d=ids[D])


def test_adapters_and_aliases_have_the_network_of_their_model() -> None:
    settings = Disagg(models={"m": KvCache(bytes_per_token=7), "other": KvCache(bytes_per_token=9)})
    aliases = {"alias": ["absent", "m"], "tuned": ["lora"]}
    fleet = engines(settings, {P: FACTS, D: FACTS}, **aliases)
    for name in ("m", "lora", *aliases):
        assert fleet.made.links(name) is fleet.networks.of("m"), name
    assert fleet.made.links("other") is fleet.networks.of("other"), "as it is called"


def test_an_alias_that_is_another_adapter_elsewhere_is_not_handed_over() -> None:
    more = replace(FACTS, models=("m", "more"), adapters={"more": "m"})
    plain = replace(FACTS, models=("m", "also"), adapters={})
    aliases = {
        "first": ["lora", "more"],
        "either": ["lora", "m"],
        "base": ["also", "m"],
        "same": ["lora", "m"],
    }
    settings = Disagg(connector=ConnectorName.NIXL_PULL)
    for facts, paired in (
        ({P: FACTS, D: more}, {"m", "base"}),
        ({P: FACTS, D: plain}, {"m", "base"}),
        ({P: FACTS, D: FACTS}, {"m", "lora", *aliases}),
    ):
        fleet = engines(settings, facts, **aliases)
        found = {
            name for name in ("m", *paired, *aliases) if fleet.made.paired(fleet.p, fleet.d, name)
        }
        assert found == paired
