from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.config import BackendConfig, Settings, Tenants
from gateway.estimates.outputs import Outputs
from gateway.estimates.tokens import TokenEstimate
from gateway.fleet.facts import EngineFacts
from gateway.fleet.fleet import Fleet
from gateway.http.dialects.registry import dialect_for
from gateway.http.errors import Malformed
from gateway.http.facts import FactReader, Facts
from gateway.http.headers import read_request
from gateway.prefix.blocks import BlockScale
from gateway.prefix.generations import Generations
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.types import EngineKind, Priority, Role
from policies.base import RouteRequest
from policies.registry import build

NOW = 100.0
PATH = "/v1/chat/completions"


class Site:
    """A reader, and a pool of engines of the given kinds."""

    def __init__(self, *kinds: EngineKind) -> None:
        settings = Settings()
        self.fleet = Fleet(settings.health, lambda: NOW)
        scale = BlockScale()
        self.reader = FactReader(
            fleet=self.fleet,
            index=PrefixIndex(scale, 1000),
            scale=scale,
            generations=Generations(),
            tokens=TokenEstimate(),
            outputs=Outputs(),
            clock=lambda: NOW,
        )
        policy = build("round_robin", {})
        self.pool = Pool("m", Role.UNIFIED, policy, settings.scheduling, lambda: NOW)
        loads = []
        for place, kind in enumerate(kinds):
            backend = self.fleet.add(BackendConfig(url=f"http://gpu{place}:8000")).backend
            self.fleet.probe_succeeded(backend, EngineFacts(kind, "/health", ("m",)))
            loads.append(BackendLoad(backend.id))
        self.pool.set_backends(loads)

    def read(self, body: Any = None, path: str = PATH, **headers: str) -> Facts:
        pairs = [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        data = json.dumps({"model": "m", "messages": [], **(body or {})}).encode()
        return self.reader.read(dialect_for("POST", path), read_request(pairs, b"x-team"), data)

    def appraise(self, body: Any = None, **headers: str) -> RouteRequest:
        return self.reader.appraise(self.read(body, **headers), self.pool)


def test_a_request_that_says_nothing_is_nobodys_and_normal() -> None:
    request = Site(EngineKind.VLLM).appraise()
    assert (request.tenant, request.priority) == ("", Priority.NORMAL)
    assert request.deadline == NOW + 2.0


@pytest.mark.parametrize("value", ["high", "HIGH"])
def test_the_header_gives_the_priority(value: str) -> None:
    facts = Site().read(x_prefixgate_priority=value)
    assert facts.priority is facts.request.priority is Priority.HIGH


@pytest.mark.parametrize(
    ("kinds", "given", "means"),
    [
        ((EngineKind.VLLM,), -5, Priority.HIGH),
        ((EngineKind.VLLM,), 5, Priority.LOW),
        ((EngineKind.VLLM,), 0, Priority.NORMAL),
        ((EngineKind.SGLANG,), 5, Priority.HIGH),
        ((EngineKind.SGLANG, EngineKind.SGLANG), -5, Priority.LOW),
        ((EngineKind.SGLANG, EngineKind.VLLM), -5, Priority.HIGH),
        ((), -5, Priority.HIGH),
    ],
)
def test_a_bodys_priority_means_what_it_means_to_the_engine(
    kinds: tuple[EngineKind, ...], given: int, means: Priority
) -> None:
    assert Site(*kinds).appraise({"priority": given}).priority is means


def test_the_header_beats_the_body() -> None:
    request = Site(EngineKind.VLLM).appraise({"priority": -5}, x_prefixgate_priority="low")
    assert request.priority is Priority.LOW


@pytest.mark.parametrize("given", ["high", 1.5, None, True, [1]])
def test_a_priority_in_the_body_that_is_no_number_is_the_engines_to_judge(given: Any) -> None:
    assert Site(EngineKind.VLLM).appraise({"priority": given}).priority is Priority.NORMAL


def test_the_client_sets_its_own_target_and_wait() -> None:
    site = Site(EngineKind.VLLM)
    assert site.appraise(x_prefixgate_ttft_ms="250").deadline == NOW + 0.25
    assert site.read(x_prefixgate_max_wait_ms="0").max_wait == 0.0


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "1e3", " 1", "abc", "86400001", "9" * 50])
def test_what_cannot_be_understood_is_refused(value: str) -> None:
    with pytest.raises(Malformed) as caught:
        Site().read(x_prefixgate_ttft_ms=value)
    assert caught.value.status == 400
    assert caught.value.param == "x-prefixgate-ttft-ms"
    assert "86400000" in str(caught.value)


def test_one_key_is_one_tenant_however_it_is_sent() -> None:
    site = Site()
    sent = [
        site.read(authorization="Bearer sk-1"),
        site.read(authorization="bearer sk-1"),
        site.read(x_api_key="sk-1"),
    ]
    [tenant] = {facts.request.tenant for facts in sent}
    assert tenant
    assert "sk-1" not in tenant
    assert site.read(authorization="Bearer sk-2").request.tenant != tenant


def test_keys_are_told_apart_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.http.facts._MAX_CREDENTIALS", 3)
    site = Site()
    rounds = [
        [site.read(authorization=f"Bearer sk-{number}").request.tenant for number in range(8)]
        for _ in range(2)
    ]
    assert rounds[0] == rounds[1]
    assert len(set(rounds[0])) == 8
    assert len(site.reader._tenants) <= 3


def test_a_trusted_header_names_the_tenant() -> None:
    facts = Site().read(authorization="Bearer sk-1", x_team="search")
    assert facts.request.tenant == "search"
    assert len(Site().read(x_team="x" * 10_000).request.tenant) == 200
    assert Tenants().header is None
