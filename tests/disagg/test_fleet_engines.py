from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gateway.config import BackendConfig, Disagg, Health, KvCache
from gateway.disagg.fleet_engines import FleetEngines
from gateway.disagg.networks import Networks
from gateway.disagg.pairs import Pairs
from gateway.fleet.aliases import Aliases
from gateway.fleet.backend import Source
from gateway.fleet.fleet import Fleet
from gateway.fleet.reconciler import Reconciler
from gateway.scheduling.load import BackendLoad
from gateway.types import Role
from tests.disagg.test_traffic import FACTS


def test_adapters_and_aliases_have_the_network_of_their_model() -> None:
    def clock() -> float:
        return 0.0

    fleet = Fleet(Health(), clock)
    roles = {"d": Role.DECODE, "p": Role.PREFILL}
    configs = [BackendConfig(url=f"http://{name}:1", role=role) for name, role in roles.items()]
    Reconciler(fleet, clock, 0.0).offer(Source.CONFIG, configs)
    for backend in fleet:
        fleet.probe_succeeded(backend, FACTS)
    fleet.aliases = Aliases({"alias": ["absent", "m"], "tuned": ["lora"]})
    pool = SimpleNamespace(members=[BackendLoad(backend.id) for backend in fleet])
    pools: Any = dict.fromkeys(("m", "lora", "alias", "tuned"), pool)
    settings = Disagg(models={"m": KvCache(bytes_per_token=7), "other": KvCache(bytes_per_token=9)})
    networks = Networks(settings)
    engines = FleetEngines(fleet, cast(Any, pools), Pairs(settings, clock), networks)
    for name in pools:
        assert engines.links(name) is networks.of("m"), name
    assert engines.links("other") is networks.of("other"), "as it is called where nobody serves it"
