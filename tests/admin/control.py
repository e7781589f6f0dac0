"""A gateway behind the admin API: a real fleet, index and pool, and no traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.admin.control import UnknownKey
from gateway.admin.views import (
    BackendView,
    CandidateView,
    DecisionView,
    DiscoveryView,
    Explanation,
    IndexView,
    KeyView,
    MatchView,
    NewKeyView,
    OverridesView,
    OverrideView,
    PolicyView,
    PoolView,
    ReloadView,
    RequestView,
)
from gateway.config import (
    Admin,
    BackendConfig,
    ConfigError,
    NewKey,
    PolicyConfig,
    Scheduling,
    Settings,
)
from gateway.disagg.advice import Observed, advise
from gateway.disagg.report import ModelReport, PoolReport, TransferReport, WasteReport
from gateway.disagg.span import Waste
from gateway.fleet.backend import BackendPatch, Source
from gateway.fleet.facts import EngineFacts
from gateway.fleet.fleet import Fleet
from gateway.fleet.reconciler import Reconciler
from gateway.prefix.blocks import BlockScale
from gateway.prefix.index import PrefixIndex
from gateway.scheduling.load import BackendLoad
from gateway.scheduling.pool import Pool
from gateway.types import EngineKind, Priority, Reason, Role, WorkClass
from policies.registry import build

FACTS = EngineFacts(EngineKind.VLLM, "/health", ("m",), {"m": 4096}, 16_000, 16)
MAX_BLOCKS = 1000
NOW = 100.0


class FakeControl:
    """Satisfies `Control`.

    Attributes:
        broken: every call fails as a bug would.
        explained: what `explain` was asked, in order.
        flushed: what `flush_index` was asked, in order.
        shared: as of `Control`.
    """

    def __init__(self) -> None:
        self.broken = False
        self.shared: bool | None = None
        self.explained: list[tuple[str, str, Mapping[str, str], bytes]] = []
        self.flushed: list[tuple[str | None, str | None]] = []
        self.config = Settings(
            backends=[BackendConfig(url="http://gpu1:8000")], admin=Admin(token="t0p-secret")
        )
        self.fleet = Fleet(self.config.health, lambda: NOW - 5)
        self.loads: dict[str, BackendLoad] = {}
        self.index = PrefixIndex(BlockScale(), MAX_BLOCKS)
        self.decides = PolicyConfig(name="round_robin")
        self.pool = Pool(
            "m", Role.UNIFIED, build("round_robin", {}), self.config.scheduling, lambda: NOW
        )
        self.reconciler = Reconciler(self.fleet, lambda: NOW, 0.0)
        self.reconciler.offer(Source.CONFIG, self.config.backends)
        for backend in self.fleet:
            self.fleet.probe_succeeded(backend, FACTS)
            self.index.add_backend(backend.id, 16_000.0)
        self.pool.set_backends([self.load(self.first)])

    @property
    def first(self) -> str:
        """Id of the backend that is there from the start."""
        return next(iter(self.fleet)).id

    def load(self, id: str) -> BackendLoad:
        return self.loads.setdefault(id, BackendLoad(id))

    def backends(self) -> list[BackendView]:
        if self.broken:
            raise ZeroDivisionError("t0p-secret")
        return [self.backend(backend.id) for backend in self.fleet]

    def backend(self, id: str) -> BackendView:
        return BackendView.of(self.fleet.get(id), self.load(id), NOW)

    async def add_backend(self, config: BackendConfig) -> tuple[BackendView, bool]:
        backend, new = self.reconciler.add(config)
        return self.backend(backend.id), new

    async def patch_backend(self, id: str, patch: BackendPatch) -> BackendView:
        return self.backend(self.reconciler.patch(id, patch).id)

    async def drain_backend(self, id: str, on: bool) -> BackendView:
        return self.backend(self.reconciler.drain(id, on).id)

    async def remove_backend(self, id: str) -> None:
        self.reconciler.remove(id)

    def discovery(self) -> list[DiscoveryView]:
        return [
            DiscoveryView(
                name="dns:A:engines:8000",
                source=Source.DNS,
                backends=[self.first],
                unreachable=1,
                age_seconds=2.5,
                failures=3,
                cause="no answer within 5.0 s",
            )
        ]

    def disagg(self) -> list[ModelReport]:
        observed = Observed(window_seconds=60.0, unified_engines=1)
        pool = PoolReport(
            role=Role.UNIFIED,
            engines=1,
            healthy_engines=1,
            connectors=[],
            prefill_seconds_per_second=0.25,
            decode_seconds_per_second=0.5,
            utilisation_ratio=0.75,
        )
        return [
            ModelReport(
                model="m",
                advice=advise(observed),
                pools=[pool],
                requests_count=4,
                handovers_count=1,
                transfers=TransferReport(
                    count=1,
                    kv_tokens_moved=100.0,
                    kv_bytes_moved=None,
                    timed_count=0,
                    predicted_p50_seconds=None,
                    predicted_p95_seconds=None,
                    observed_p50_seconds=None,
                    observed_p95_seconds=None,
                ),
                wasted_prefills=WasteReport(
                    count=1, reasons={Waste.EXPIRED: 1}, prefill_seconds=0.5
                ),
                kv_bytes_per_token=None,
                bandwidth_bytes_per_second=None,
                transfer_basis=None,
                observed=observed,
            )
        ]

    def keys(self) -> list[KeyView]:
        return [
            KeyView(
                name="team",
                tenant="team",
                models=["m*"],
                max_priority=Priority.NORMAL,
                requests_per_minute=60,
                tokens_per_minute=None,
                max_concurrent=None,
                shared=False,
                requests_used=2,
                tokens_used=300,
                concurrent=1,
                requests_total=9,
                tokens_total=4000,
                limited={"requests": 1},
            )
        ]

    async def add_key(self, options: NewKey) -> NewKeyView:
        if options.name == "team":
            raise ConfigError("body: name: there is a key 'team' already", field="name")
        return NewKeyView(name=options.name, key="pg-made")

    async def patch_key(self, name: str, options: Mapping[str, Any]) -> KeyView:
        if name not in ("team", "made"):
            raise UnknownKey(name)
        return self.keys()[0]

    async def remove_key(self, name: str) -> None:
        if name == "team":
            raise ConfigError("the key 'team' is in the settings")
        if name != "made":
            raise UnknownKey(name)

    def overrides(self) -> OverridesView:
        return OverridesView(
            shared=self.shared,
            version=None if self.shared is None else 7,
            overrides=[
                OverrideView(
                    name="scheduling/gate",
                    value=None,
                    age_seconds=2.5,
                    shared=self.shared,
                    ignored=None,
                )
            ],
        )

    async def drop_overrides(self, section: str) -> OverridesView:
        return self.overrides()

    def policies(self) -> list[PolicyView]:
        policy = build("round_robin", {})
        return [
            PolicyView(
                name=policy.name,
                description="In turn.",
                current=True,
                defaults=msgspec.to_builtins(policy.params),
                params_schema=msgspec.json.schema(policy.params_type),
            )
        ]

    def policy(self) -> PolicyConfig:
        return self.decides

    async def set_policy(self, policy: PolicyConfig) -> PolicyConfig:
        build(policy.name, policy.params)
        self.decides = policy
        return policy

    def scheduling(self) -> Scheduling:
        return self.pool.scheduling

    async def set_scheduling(self, scheduling: Scheduling) -> Scheduling:
        self.pool.scheduling = scheduling
        return scheduling

    def explain(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> Explanation:
        self.explained.append((method, path, headers, body))
        if not body:
            raise ConfigError("body: is empty", field="body")
        return Explanation(
            dialect="openai_chat",
            model="m",
            namespace="00ff",
            key_bytes=4096,
            blocks=20,
            prompt_tokens=1024,
            output_tokens=300,
            work_class=WorkClass.DECODE,
            priority=Priority.NORMAL,
            tenant="0a1b",
            deadline=2.0,
            match=MatchView(blocks={self.first: 4}, tokens={self.first: 100.5}),
            candidates=[
                CandidateView(
                    backend=self.first,
                    room=True,
                    hold=None,
                    held=0,
                    queue_seconds=0.125,
                    prefill_seconds=0.125,
                    score=0.25,
                    terms={"wait": 0.25},
                )
            ],
            decision=DecisionView(
                backend=self.first, reason=Reason.PREFIX, why="it is warm", waits=False
            ),
        )

    def index_stats(self) -> IndexView:
        return IndexView.of(self.index.stats(), MAX_BLOCKS)

    def flush_index(self, backend: str | None, model: str | None) -> IndexView:
        if backend is not None:
            self.fleet.get(backend)
        self.flushed.append((backend, model))
        return self.index_stats()

    def queues(self) -> list[PoolView]:
        return [PoolView.of(self.pool, NOW)]

    def requests(self) -> list[RequestView]:
        return [
            RequestView(
                id="a-1",
                dialect="openai_chat",
                model="m",
                stream=True,
                phase="queue",
                age=0.5,
                work_class=None,
                priority=Priority.NORMAL,
                tenant=None,
                prompt_tokens=10,
                backend=None,
                reason=None,
                matched_tokens=0.0,
                queue_seconds=0.5,
            )
        ]

    def settings(self) -> Settings:
        return self.config

    async def reload(self) -> ReloadView:
        if self.broken:
            raise ConfigError("c.yaml:3: sever: unknown", field="sever")
        return ReloadView(changed=["log.level"], needs_restart=["server.port"])
