"""What the composition root makes of the fleet's news."""

import msgspec
import pytest

from gateway.app import Gateway
from gateway.config import (
    BackendConfig,
    ConnectorName,
    Disagg,
    KvCache,
    PolicyConfig,
    Settings,
)
from gateway.disagg.placing import HandoverPlacing
from gateway.fleet.backend import Backend, Source
from gateway.fleet.facts import EngineFacts
from gateway.types import EngineKind, Role
from policies.prefix_affinity import PrefixAffinity

FACTS = EngineFacts(EngineKind.VLLM, "/health", ("m",), capacity_tokens=1000)


NO_DISAGG = Disagg(models={"m": KvCache(bytes_per_token=1)})
HANDING_OVER = Disagg(connector=ConnectorName.NIXL_PULL)


def gateway(
    disagg: Disagg = NO_DISAGG, policy: str = "prefix_affinity", **roles: Role
) -> tuple[Gateway, dict[str, Backend]]:
    configs = [BackendConfig(url=f"http://{name}:1", role=role) for name, role in roles.items()]
    settings = Settings(backends=configs, disagg=disagg, policy=PolicyConfig(name=policy))
    built = Gateway(settings)
    return built, dict(zip(roles, built.fleet, strict=True))


def serving(built: Gateway, model: str = "m") -> set[str]:
    pool = built.pools.get(model)
    return set() if pool is None else {load.id for load in pool.backends}


def test_prefill_engines_serve_whole_requests_only_when_they_must() -> None:
    built, backends = gateway(p=Role.PREFILL, d=Role.DECODE, u=Role.UNIFIED)
    built.fleet.probe_succeeded(backends["p"], FACTS)
    assert serving(built) == {backends["p"].id}
    built.fleet.probe_succeeded(backends["d"], FACTS)
    assert serving(built) == {backends["d"].id}
    built.fleet.probe_succeeded(backends["u"], FACTS)
    assert serving(built) == {backends["d"].id, backends["u"].id}


@pytest.mark.parametrize(
    ("disagg", "policy", "joint"),
    [
        (HANDING_OVER, "prefix_affinity", True),
        (HANDING_OVER, "least_load", False),
        (msgspec.structs.replace(HANDING_OVER, min_uncached_tokens=1), "prefix_affinity", False),
    ],
)
def test_prefill_engines_can_be_chosen_first_where_costs_decide_on_handovers(
    disagg: Disagg, policy: str, joint: bool
) -> None:
    built, backends = gateway(disagg, policy, p=Role.PREFILL, d=Role.DECODE)
    ids = {name: backend.id for name, backend in backends.items()}
    built.fleet.probe_succeeded(backends["d"], FACTS)
    assert serving(built) == {ids["d"]}
    built.fleet.probe_succeeded(backends["p"], FACTS)
    assert serving(built) == ({ids["d"], ids["p"]} if joint else {ids["d"]})
    built.fleet.drain(ids["d"])
    assert serving(built) == {ids["p"]}


def test_a_fleet_without_prefill_engines_routes_by_the_policy_itself() -> None:
    built, backends = gateway(HANDING_OVER, p=Role.PREFILL, d=Role.DECODE)
    assert type(built.pools.policy) is HandoverPlacing
    for backend in backends.values():
        built.fleet.probe_succeeded(backend, FACTS)
    pool = built.pools.get("m")
    assert pool is not None
    assert pool.screen is not None
    configs = [BackendConfig(url=f"http://{name}:1", role=backends[name].role) for name in "pd"]
    built.reconciler.offer(Source.CONFIG, configs[1:])
    assert type(built.pools.policy) is type(pool.policy) is PrefixAffinity
    assert pool.screen is None
    built.reconciler.offer(Source.CONFIG, configs)
    assert type(pool.policy) is HandoverPlacing


def test_the_engines_cache_size_reaches_index_and_ledger() -> None:
    built, backends = gateway(a=Role.UNIFIED)
    built.fleet.probe_succeeded(backends["a"], FACTS)
    assert built.loads[backends["a"].id].capacity_tokens == 1000


def test_a_removed_backend_leaves_nothing_behind() -> None:
    built, backends = gateway(a=Role.UNIFIED)
    built.fleet.probe_succeeded(backends["a"], FACTS)
    links = built.disagg.networks.of("m")
    assert links is not None
    links.began("one", "p", backends["a"].id, 1.0, 0.0)
    links.ended("one", 1.0)
    assert links.bandwidth(backends["a"].id) != links.usual_bandwidth
    built.fleet.remove(backends["a"].id)
    assert serving(built) == set()
    assert not built.upstreams
    assert not built.loads
    assert not built.index.stats().backends
    assert links.bandwidth(backends["a"].id) == links.usual_bandwidth


def test_K11_an_adapter_that_comes_back_has_another_namespace() -> None:
    built, backends = gateway(a=Role.UNIFIED)
    both = EngineFacts(EngineKind.VLLM, "/health", ("m", "lora"))
    built.fleet.probe_succeeded(backends["a"], both)
    before = built.generations.namespace("lora", b"ns"), built.generations.namespace("m", b"ns")
    built.fleet.probe_succeeded(backends["a"], FACTS)
    built.fleet.probe_succeeded(backends["a"], both)
    assert built.generations.namespace("lora", b"ns") != before[0]
    assert built.generations.namespace("m", b"ns") == before[1]
